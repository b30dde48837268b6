"use strict";
// The controls: what the reader chooses is the state of a study; a change draws the pictures that depend on it anew.
(() => {
  const root = document.documentElement;
  const themeButton = document.getElementById("theme");
  const { element, Sortable } = Tables;

  function theme() {
    const read = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
    const names = ["page", "surface", "text", "muted", "line", "gain", "loss"];
    return {
      name: root.dataset.theme,
      font: getComputedStyle(document.body).fontFamily,
      ...Object.fromEntries(names.map((name) => [name, read(name)])),
    };
  }

  function table({ head, body }, label) {
    const cells = (row) => row.map((value, i) => element(i ? "td" : "th", i ? {} : { scope: "row" }, String(value)));
    const made = element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...body.map((row) => element("tr", {}, ...cells(row)))),
    );
    return element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label }, made);
  }

  function options(select, names) {
    select.replaceChildren(...names.map((name, i) => element("option", { value: i }, name)));
  }

  // A short piece of line with its marker, as the charts draw it.
  function swatch(look) {
    const dash = { solid: "none", dashed: "6 4", dotted: "2 3" }[look.dash];
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({ width: 28, height: 10, "aria-hidden": "true" }))
      svg.setAttribute(name, value);
    const shapes = {
      circle: "M10 5a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
      rect: "M10 1h8v8h-8z",
      triangle: "M14 1l5 8h-10z",
      diamond: "M14 0l5 5l-5 5l-5-5z",
      roundRect: "M11 1h6l1 1v6l-1 1h-6l-1-1v-6z",
      arrow: "M14 1l4 8l-4-2l-4 2z",
    };
    for (const [name, drawn] of [
      ["line", { x1: 0, y1: 5, x2: 28, y2: 5, "stroke-width": 2.5, stroke: look.color, "stroke-dasharray": dash }],
      ["path", { d: shapes[look.symbol] ?? "", fill: look.color }],
    ]) {
      const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(drawn)) shape.setAttribute(key, value);
      svg.append(shape);
    }
    return svg;
  }

  // A picture and what goes with it: its label, its caption and, when asked for, its table.
  class Figure {
    constructor(figure, picture) {
      this.figure = figure;
      this.picture = picture;
      this.place = figure.querySelector(".chart");
      this.details = figure.querySelector("details");
      this.details.addEventListener("toggle", () => this.tabulate());
      this.chart = echarts.init(this.place, null, { renderer: "svg" });
      new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.place);
    }

    draw() {
      if (this.figure.hidden) return;
      const drawn = this.picture(this.place.clientWidth, this.place.clientHeight, this);
      this.chart.resize();
      this.chart.setOption(drawn.option, { notMerge: true });
      this.place.setAttribute("aria-label", drawn.summary);
      const caption = this.figure.querySelector("figcaption");
      this.written ??= caption.innerHTML;
      if (drawn.caption) caption.textContent = drawn.caption;
      else caption.innerHTML = this.written;
      this.explain(drawn.legend ?? []);
      this.table = drawn.table;
      this.tabulate();
    }

    // The lines by name, right below them: on a phone the buttons that choose them are out of sight.
    explain(entries) {
      this.figure.querySelector(".legend")?.remove();
      if (!entries.length) return;
      const items = entries.map((entry) => element("li", {}, swatch(entry), entry.name));
      this.place.after(element("ul", { class: "legend", "aria-hidden": "true" }, ...items));
    }

    tabulate() {
      this.details.querySelector(".scroll")?.remove();
      if (this.details.open && this.table)
        this.details.append(table(this.table, this.place.getAttribute("aria-label")));
    }
  }

  class Study {
    constructor(article, data) {
      this.article = article;
      this.data = data;
      this.values = new Map();
      this.state = {
        visible: new Set(data.methods.keys()),
        seed: 0,
        figure: "mean",
        zoom: false,
        bands: data.seeds.length > 1 && data.methods.length <= 4,
        point: data.point,
        metric: data.metric,
        view: "gain",
        benefit: 0,
        person: -1,
        roundScale: true,
        observed: 0,
        slice: 0,
        round: 0,
        diagonal: false,
        client: 0,
      };
      this.state.benefit = this.best(data.point);
      this.toggles();
      this.controls();
      const pictures = {
        benefit: (...size) => Charts.benefit(data, this.state, theme(), ...size),
        paths: (width) => Charts.paths(data, this.state, theme(), width, this.paths()),
        received: (width) => Charts.convergence(data, this.state, theme(), width, "received"),
        trained: (width) => Charts.convergence(data, this.state, theme(), width, "trained"),
        labels: (width, height) => Charts.labels(data, this.state, theme(), width, height),
        matrix: (width) => Charts.matrix(data, this.state, theme(), width, this.observed()),
        trajectory: (width) => Charts.trajectory(data, this.state, theme(), width, this.observed()),
        communication: (width) => Charts.communication(data, this.state, theme(), width),
      };
      this.figures = {};
      for (const figure of article.querySelectorAll("figure[data-chart]")) {
        this.figures[figure.dataset.chart] = new Figure(figure, pictures[figure.dataset.chart]);
      }
      this.shape();
      this.sorting();
      this.chooseMetric(this.state.metric);
      this.choosePoint(this.state.point);
      if (data.observed.length) this.chooseObserved(0);
      this.draw();
    }

    draw(...names) {
      for (const [name, figure] of Object.entries(this.figures))
        if (!names.length || names.includes(name)) figure.draw();
      const sources = this.article.querySelector("[data-role=sources]");
      if (sources) sources.textContent = this.observed() ? Charts.sources(this.data, this.state, this.observed()) : "";
    }

    // The method that does best at a point, or the first.
    best(point) {
      return Math.max(
        0,
        this.data.methods.findIndex((method) => method.label === this.data.best[point][this.state.metric]),
      );
    }

    // Everything is compared at one point: text and tables have all of them written, and the style shows one.
    choosePoint(point) {
      this.state.point = point;
      this.article.dataset.point = point;
      this.control("point").forEach((radio) => {
        radio.checked = radio.value === point;
      });
      this.tables.forEach((each) => each.refresh());
      this.figures.paths.figure.hidden = this.paths() === null;
      this.draw("benefit", "paths", "communication");
    }

    // Everything is judged by one metric, in its own direction.
    chooseMetric(metric) {
      const { data, state } = this;
      state.metric = metric;
      this.article.dataset.metric = metric;
      const { title, figures } = Charts.metricOf(data, state);
      if (!figures.some((each) => each.key === state.figure)) state.figure = "mean";
      this.control("metric").forEach((select) => {
        select.value = metric;
      });
      this.control("view").forEach((select) => {
        select.options[1].textContent = title;
      });
      this.control("figure").forEach((select) => {
        select.replaceChildren(...figures.map((each) => element("option", { value: each.key }, each.choice)));
        select.value = state.figure;
      });
      this.figures.trained.figure.hidden = !Charts.figureOf(data, state).points;
      this.tables.forEach((each) => each.turn());
      this.tables.forEach((each) => each.refresh());
      this.figures.paths.figure.hidden = this.paths() === null;
      this.draw("benefit", "paths", "received", "trained", "communication");
    }

    sorting() {
      this.tables = [...this.article.querySelectorAll("table.sortable")].map((each) => new Sortable(each, this));
    }

    control(name) {
      return [...this.article.querySelectorAll(`[data-control=${name}]`)];
    }

    // Give the bubbles a height for their classes.
    shape() {
      if (this.figures.labels)
        this.figures.labels.place.style.height = `${Math.min(900, Math.max(260, 24 * this.data.labels[0][0].length + 90))}px`;
    }

    toggles() {
      const group = this.article.querySelector(".methods-toggle");
      this.buttons = this.data.methods.map((method, index) => {
        const button = element("button", { type: "button", "aria-pressed": "true" }, method.shown);
        button.addEventListener("click", () => {
          const shown = !this.state.visible.delete(index);
          if (shown) this.state.visible.add(index);
          button.setAttribute("aria-pressed", String(shown));
          this.draw("received", "trained", "communication");
        });
        group.append(button);
        return button;
      });
      this.swatches();
    }

    swatches() {
      this.buttons.forEach((button, index) => {
        button.querySelector("svg")?.remove();
        button.prepend(swatch(Charts.style(this.data.methods, index, theme())));
      });
    }

    controls() {
      const { data, state } = this;
      const on = (name, event, change) =>
        this.control(name).forEach((each) => each.addEventListener(event, () => change(each)));
      this.control("seed").forEach((select) => options(select, data.seeds));
      this.control("benefit").forEach((select) => {
        options(
          select,
          data.methods.map((method) => method.shown),
        );
        select.value = state.benefit;
      });
      this.control("person").forEach((select) => {
        options(select, data.names);
        select.prepend(element("option", { value: -1 }, "all"));
        select.value = state.person;
      });
      this.control("observed").forEach((select) =>
        options(
          select,
          data.observed.map((each) => each.title),
        ),
      );
      this.control("bands").forEach((box) => {
        box.checked = state.bands;
      });
      on("benefit", "change", (select) => {
        state.benefit = Number(select.value);
        this.figures.paths.figure.hidden = this.paths() === null;
        this.draw("benefit", "paths");
      });
      on("point", "change", (radio) => this.choosePoint(radio.value));
      on("metric", "change", (select) => this.chooseMetric(Number(select.value)));
      on("view", "change", (select) => {
        state.view = select.value;
        this.draw("benefit");
      });
      on("person", "change", (select) => {
        state.person = Number(select.value);
        this.draw("paths");
      });
      on("figure", "change", (select) => {
        state.figure = select.value;
        this.figures.trained.figure.hidden = !Charts.figureOf(data, state).points;
        this.draw("received", "trained");
      });
      on("roundScale", "change", (box) => {
        state.roundScale = box.checked;
        this.draw("matrix");
      });
      on("zoom", "change", (box) => {
        state.zoom = box.checked;
        this.draw("received", "trained");
      });
      on("bands", "change", (box) => {
        state.bands = box.checked;
        this.draw("received", "trained");
      });
      on("observed", "change", (select) => {
        this.chooseObserved(Number(select.value));
        this.draw("matrix", "trajectory");
      });
      on("slice", "change", (select) => {
        state.slice = Number(select.value);
        this.draw("matrix", "trajectory");
      });
      on("client", "change", (select) => {
        state.client = Number(select.value);
        this.draw("trajectory");
      });
      on("diagonal", "change", (box) => {
        state.diagonal = box.checked;
        this.draw("matrix", "trajectory");
      });
      on("round", "input", (slider) => {
        this.chooseRound(Number(slider.value));
        this.draw("matrix");
      });
      on("seed", "change", (select) => {
        state.seed = Number(select.value);
        this.control("seed").forEach((each) => {
          each.value = select.value;
        });
        if (data.observed.length) this.chooseObserved(state.observed);
        this.figures.paths.figure.hidden = this.paths() === null;
        this.draw("benefit", "paths", "labels", "matrix", "trajectory");
      });
    }

    // Every client's figure in every round, of the chosen method.
    paths() {
      const { benefit, seed, metric } = this.state;
      const method = this.data.methods[benefit];
      const point = Charts.pointOf(method, this.state);
      const packed = Charts.judged(method, this.state).paths[point][seed];
      if (!packed) return null;
      const key = `path/${benefit}/${metric}/${point}/${seed}`;
      if (!this.values.has(key)) this.values.set(key, Charts.unpack(packed, [this.data.clients, 1, 1], this.data.clients));
      return this.values.get(key);
    }

    observed() {
      const { observed, seed } = this.state;
      const each = this.data.observed[observed];
      const packed = each?.seeds[seed];
      if (!packed) return null;
      const key = `${observed}/${seed}`;
      if (!this.values.has(key)) this.values.set(key, Charts.unpack(packed, each.shape, each.shape[0]));
      return this.values.get(key);
    }

    chooseObserved(index) {
      const { state, data } = this;
      if (index !== state.observed) [state.slice, state.client] = [0, 0];
      state.observed = index;
      const each = data.observed[index];
      const values = this.observed();
      const [rows, slices, columns] = each.shape;
      const there = (name, shown) => {
        this.article.querySelector(`[data-for=${name}]`).hidden = !shown;
      };
      there("slice", each.matrix && slices > 1);
      there("round", each.matrix && values !== null);
      there("roundScale", each.matrix && values !== null);
      this.article.querySelector("[data-role=meaning]").textContent = each.meaning ? `${each.name}: ${each.meaning}.` : "";
      there("diagonal", Charts.isMixing(each, data));
      if (values) this.chooseDiagonal(Charts.outshone(each, data, state, values));
      this.article.querySelector("[data-role=too-large]").hidden = values !== null;
      this.figures.matrix.figure.hidden = !each.matrix || values === null;
      this.figures.trajectory.figure.hidden = values === null;
      this.control("slice").forEach((select) => {
        options(
          select,
          Array.from({ length: slices }, (_, i) => i),
        );
        select.value = state.slice;
      });
      this.control("client").forEach((select) => {
        options(
          select,
          Array.from({ length: rows }, (_, i) => (rows === data.clients ? data.names[i] : i)),
        );
        select.value = state.client;
      });
      const place = this.figures.matrix.place;
      place.style.maxWidth = `${Math.max(340, 34 * columns + 110)}px`;
      place.style.height = `${Math.min(900, Math.max(350, 24 * rows + 130))}px`;
      if (values) this.chooseRound(values.rounds.length - 1);
    }

    chooseDiagonal(left) {
      this.state.diagonal = left;
      this.control("diagonal").forEach((box) => {
        box.checked = left;
      });
    }

    chooseRound(step) {
      this.state.round = step;
      const { rounds } = this.observed();
      this.control("round").forEach((slider) => {
        slider.max = rounds.length - 1;
        slider.value = step;
        slider.setAttribute("aria-valuetext", `round ${rounds[step]}`);
        slider.nextElementSibling.textContent = rounds[step];
      });
    }
  }

  const data = JSON.parse(document.getElementById("data").textContent);
  const studies = [...document.querySelectorAll("[data-study]")].map(
    (article) => new Study(article, data[Number(article.dataset.study)]),
  );

  // The button says what it does.
  function relabel() {
    themeButton.textContent = root.dataset.theme === "dark" ? "Light colours" : "Dark colours";
  }

  function repaint() {
    relabel();
    studies.forEach((study) => {
      study.swatches();
      study.draw();
    });
  }
  new MutationObserver(repaint).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
  relabel();
  themeButton.addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  });

  // Paper is white and narrow.
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.printing = "";
    root.dataset.theme = "light";
    repaint();
  });
  addEventListener("afterprint", () => {
    delete root.dataset.printing;
    root.dataset.theme = before;
    repaint();
  });
})();
