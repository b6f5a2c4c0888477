"use strict";
// INDEX, in index.js, is a list of [path, title, text]; it is loaded when the search is first used. Works from files, too.
const box = document.getElementById("search"), results = document.getElementById("results"), up = document.body.dataset.up;
const MOST = 30, AROUND = 60;
let loading = null;

box.addEventListener("focus", () => {
  if (loading) return;
  loading = document.createElement("script");
  loading.src = up + "index.js";
  loading.onload = search;
  document.head.append(loading);
});
box.addEventListener("input", search);

function search() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  results.replaceChildren();
  if (words.length === 0 || typeof INDEX === "undefined") return;
  const found = [];
  for (const [path, title, text] of INDEX) {
    const low = title.toLowerCase(), all = low + " " + text.toLowerCase();
    if (!words.every((word) => all.includes(word))) continue;
    // Titles before texts, short titles before long ones.
    found.push([words.filter((word) => low.includes(word)).length * 1000 - title.length, path, title, text]);
  }
  found.sort((one, other) => other[0] - one[0]);
  for (const [, path, title, text] of found.slice(0, MOST)) {
    const link = document.createElement("a"), part = document.createElement("small");
    const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - AROUND);
    link.href = up + path;
    link.textContent = title;
    part.textContent = text.slice(at, at + 2 * AROUND);
    link.append(part);
    results.append(link);
  }
  if (found.length === 0) results.textContent = "Nothing found.";
}
