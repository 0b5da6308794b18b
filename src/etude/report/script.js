"use strict";
const tip = document.getElementById("tip");

function tokenFacts(token) {
  const {versions, layers, of} = JSON.parse(token.closest("pre").dataset.s);
  const [id, logprob, version, experts] = token.dataset.k.split("|");
  const words = ["id " + id];
  if (logprob !== "") words.push(`log p ${logprob}   p ${Math.exp(logprob).toPrecision(2)}`);
  if (version !== "") words.push("weights " + versions[version]);
  if (experts === "") words.push("experts not recorded");
  else experts.split(" ").forEach((e, i) => words.push(`layer ${layers[i]}: ` + e.replaceAll("-1", "–").replaceAll(",", " ")));
  if (experts !== "" && layers.length < of) words.push(`${layers.length} of ${of} MoE layers`);
  return words.join("\n");
}

function show(event) {
  const found = event.target.closest && event.target.closest("[data-t],[data-k]");
  tip.hidden = !found;
  if (!found) return;
  tip.textContent = found.dataset.t || tokenFacts(found);
  const {offsetWidth: w, offsetHeight: h} = tip, x = event.clientX, y = event.clientY;
  tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - w - 6)) + "px";
  tip.style.top = (y + 18 + h < innerHeight ? y + 18 : Math.max(6, y - h - 12)) + "px";
}

tip.hidden = true;
addEventListener("pointermove", show);
addEventListener("pointerdown", show);
addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});
