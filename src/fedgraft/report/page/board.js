"use strict";
// The board's page: tables that sort, methods that are looked for by name, the colours.
(() => {
  const root = document.documentElement;
  const themeButton = document.getElementById("theme");
  const relabel = () => {
    themeButton.textContent = root.dataset.theme === "dark" ? "Light colours" : "Dark colours";
  };
  new MutationObserver(relabel).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
  relabel();
  themeButton.addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  });

  const tables = [...document.querySelectorAll("table.sortable")].map((each) => new Tables.Sortable(each, { state: {} }));
  tables.forEach((each) => each.refresh());

  const search = document.getElementById("search");
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const rows = document.querySelectorAll("[data-method]");
    rows.forEach((row) => {
      row.hidden = words.length > 0 && !words.some((word) => row.dataset.method.includes(word));
    });
  });
})();
