"use strict";
// Runs in the head, before anything is painted: the reader's preference, until the button says otherwise.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = (isDark) => {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  };
  set(dark.matches);
  dark.addEventListener("change", (event) => set(event.matches));
})();
