"use strict";
// Tables that the reader sorts; `study` says which of a cell's values count, where there are several.
const Tables = (() => {
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // A table whose columns sort it; the best of each column is marked, among the values of what the reader chose.
  class Sortable {
    constructor(table, study) {
      this.study = study;
      this.body = table.tBodies[0];
      this.heads = [...table.querySelectorAll("thead tr:last-child th")];
      this.heads.forEach((head, column) => {
        if (!head.dataset.better) return;
        const button = element("button", { type: "button" }, ...head.childNodes);
        button.addEventListener("click", () => this.sort(column));
        head.replaceChildren(button);
      });
    }

    value(row, column) {
      const cell = row.cells[column];
      const { point, metric } = this.study.state;
      const chosen = (each) =>
        (each.dataset.at ?? point) === point && Number(each.dataset.m ?? metric) === metric;
      const there = [...cell.querySelectorAll("[data-value]")].find(chosen) ?? cell;
      return there.dataset.value === undefined || there.dataset.value === "" ? null : Number(there.dataset.value);
    }

    // Whether less is better in a column: of the chosen metric, its direction says so.
    less(head) {
      const { data, state } = this.study;
      return head.dataset.better === "metric" ? !Charts.metricOf(data, state).higher : head.dataset.better === "low";
    }

    // The better end first; a second click turns it round.
    sort(column, again = false) {
      const head = this.heads[column];
      const first = this.less(head) ? "ascending" : "descending";
      const turned = first === "ascending" ? "descending" : "ascending";
      const order = again ? head.getAttribute("aria-sort") : head.getAttribute("aria-sort") === first ? turned : first;
      this.heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => this.value(row, column) ?? sign * Infinity;
      const compared = (a, b) => (key(a) === key(b) ? 0 : sign * (key(a) - key(b)));
      this.body.append(...[...this.body.rows].sort(compared));
    }

    refresh() {
      const rows = [...this.body.rows];
      this.heads.forEach((head, column) => {
        const values = rows.map((row) => this.value(row, column)).filter((value) => value !== null);
        const best = (this.less(head) ? Math.min : Math.max)(...values);
        const marked = head.dataset.best !== undefined && new Set(values).size > 1;
        rows.forEach((row) => row.cells[column].classList.toggle("best", marked && this.value(row, column) === best));
      });
      const sorted = this.heads.findIndex((head) => head.hasAttribute("aria-sort"));
      if (sorted >= 0) this.sort(sorted, true);
    }

    // Another metric may have another direction: the better end comes first again.
    turn() {
      const sorted = this.heads.findIndex((head) => head.dataset.better === "metric" && head.hasAttribute("aria-sort"));
      if (sorted >= 0) this.heads[sorted].setAttribute("aria-sort", this.less(this.heads[sorted]) ? "ascending" : "descending");
    }
  }

  return { element, Sortable };
})();
