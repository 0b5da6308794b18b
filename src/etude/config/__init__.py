"""Strict configuration: TOML in, resolved TOML out. Imports neither torch nor ray."""

from etude.config.base import Config, load_config, to_toml

__all__ = ["Config", "load_config", "to_toml"]
