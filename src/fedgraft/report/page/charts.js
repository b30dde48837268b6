"use strict";
// The pictures. Each function takes data, state and theme and returns what ECharts draws (option), a sentence for those
// who cannot see it (summary) and the same values as a table.
const Charts = (() => {
  const PALETTE = {
    light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#332288", "#999933"],
    dark: ["#56b4e9", "#ee8866", "#44bb99", "#ffaabb", "#f0e442", "#9c86e8"],
  };
  const SEQUENTIAL = {
    light: ["#f7f9fb", "#cfe1f2", "#93c4de", "#4b97c9", "#1764ab", "#08306b"],
    dark: ["#1b2129", "#16395a", "#1f5f93", "#3f8fc9", "#8cc4ea", "#eaf6ff"],
  };
  const DIVERGING = {
    light: ["#b34700", "#f0a56b", "#f7f7f7", "#7ab5da", "#08519c"],
    dark: ["#ffb482", "#a8541f", "#1b2129", "#2a6a9c", "#9ad2f7"],
  };
  const DASHES = ["solid", "dashed", "dotted"];
  const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect", "arrow"];

  const escape = (text) => echarts.format.encodeHTML(String(text));
  const number = (value) => (value === null ? "–" : String(Number(value.toPrecision(3))));
  // The chosen metric, what it says of a method, and its figures as the tables have them.
  const metricOf = (study, state) => study.metrics[state.metric];
  const judged = (method, state) => method.judged[state.metric];
  const digits = (value) => {
    const size = Math.abs(value);
    if (size && !(size >= 1e-4 && size < 1e6)) return -1;
    return size && size < 1e-3 ? 4 : size < 10 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0;
  };
  const written = (metric, value) => {
    const places = metric.percent ? 1 : digits(value);
    return places < 0 ? value.toExponential(1) : value.toFixed(places);
  };
  const withUnit = (metric, value) => `${written(metric, value)}${metric.percent ? " %" : ""}`;
  const signed = (metric, value) => {
    const size = written(metric, Math.abs(value));
    return (Number(size) === 0 ? "" : value > 0 ? "+" : "−") + size;
  };
  // Axes of a metric whose limits are known reach from one to the other; bars begin at nothing, lines need not.
  const limits = (metric, line = false) =>
    metric.bounds[0] === null || metric.bounds[1] === null
      ? { scale: line }
      : { min: metric.bounds[0], max: metric.bounds[1] };
  const largest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
  const smallest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const range = (count) => Array.from({ length: count }, (_, i) => i);
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  // What a client is called, and how it is called on an axis that says "Client" already.
  const client = (study, index) => study.names[index];
  const short = (study, index) => (study.names[index] === `client ${index}` ? index : study.names[index]);
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

  // At which of the two points a method is looked at: the one that the reader chose, or that of its paper.
  const pointOf = (method, state) => (state.point === "own" ? method.headline : state.point);

  // Colour, dash and marker of a method: the references are grey, the others differ in colour and in marker.
  function style(methods, index, theme) {
    const method = methods[index];
    if (method.label === "local") return { color: theme.text, dash: "dashed", symbol: "none" };
    if (method.label === "fedavg") return { color: theme.muted, dash: "dotted", symbol: "none" };
    const place = methods.slice(0, index).filter((other) => !other.reference).length;
    const colours = PALETTE[theme.name];
    return {
      color: colours[place % colours.length],
      dash: DASHES[Math.floor(place / colours.length) % DASHES.length],
      symbol: SYMBOLS[place % SYMBOLS.length],
    };
  }

  const legend = (study, indices, theme) =>
    indices.map((index) => ({ name: study.methods[index].shown, ...style(study.methods, index, theme) }));

  function frame(theme, width) {
    const narrow = width < 520;
    return {
      animation: false,
      textStyle: { color: theme.text, fontFamily: theme.font },
      grid: { left: narrow ? 8 : 16, right: narrow ? 14 : 24, top: 32, bottom: 34, containLabel: true },
      tooltip: {
        confine: true,
        backgroundColor: theme.surface,
        borderColor: theme.line,
        textStyle: { color: theme.text, fontFamily: theme.font, fontSize: 13 },
      },
    };
  }

  function axis(theme, name, extra) {
    const upright = { nameLocation: "end", nameGap: 12, nameTextStyle: { color: theme.muted, align: "left" } };
    const along = { nameLocation: "middle", nameGap: 30, nameTextStyle: { color: theme.muted } };
    return {
      name,
      ...(extra.vertical ? upright : along),
      axisLine: { show: true, lineStyle: { color: theme.muted } },
      axisTick: { show: false },
      axisLabel: { color: theme.muted, hideOverlap: true },
      splitLine: {
        show: extra.type === "value" || extra.type === "log",
        lineStyle: { color: theme.line, opacity: 0.6 },
      },
      ...extra,
    };
  }

  function rows(title, entries) {
    const lines = entries.map(
      ([marker, name, value]) =>
        `<tr><td>${marker}</td><td style="padding-right:1em">${escape(name)}</td><td style="text-align:right">${escape(value)}</td></tr>`,
    );
    return `<strong>${escape(title)}</strong><table style="font-size:13px">${lines.join("")}</table>`;
  }

  // Clients along an axis; names of sites are longer than numbers.
  function clientAxis(theme, study, name, width, extra = {}) {
    const names = range(study.clients).map((index) => short(study, index));
    const long = names.some((each) => String(each).length > 4);
    const turned = long && width / Math.max(1, names.length) < 80 && !extra.vertical;
    const { axisLabel, ...others } = extra;
    return axis(theme, name, {
      type: "category",
      data: names,
      nameGap: turned ? 64 : 30,
      ...others,
      axisLabel: {
        color: theme.muted,
        hideOverlap: true,
        ...(long
          ? {
              rotate: turned ? 40 : 0,
              width: turned ? 84 : Math.floor((0.75 * width) / names.length),
              overflow: "truncate",
              interval: names.length <= 24 ? 0 : "auto",
            }
          : {}),
        ...axisLabel,
      },
    });
  }

  function bounds(values, step = 10) {
    const low = Math.max(0, Math.floor(smallest(values) / step) * step);
    return { min: low, max: Math.min(100, Math.ceil(largest(values) / 5) * 5) || 100 };
  }

  // Of anything but a share in percent: a little more than the values need.
  function room(values) {
    const [low, high] = [smallest(values), largest(values)];
    const span = high - low || Math.abs(high) || 1;
    const unit = 10 ** Math.floor(Math.log10(span)) / 2;
    const neat = (count) => Number((count * unit).toPrecision(12));
    const least = neat(Math.floor((low - 0.02 * span) / unit));
    return { min: low >= 0 ? Math.max(0, least) : least, max: neat(Math.ceil((high + 0.02 * span) / unit)) };
  }

  // The axis of a figure: shares have natural limits; what is better the less it is must not be flattened by one
  // method that diverges.
  function scaleOf(figure, step) {
    if (figure.percent) return (values) => bounds(values, step);
    return figure.higher ? room : lossBounds;
  }

  function line(methods, index, theme, data, count) {
    const look = style(methods, index, theme);
    return {
      type: "line",
      id: `method-${index}`,
      name: methods[index].shown,
      data,
      lineStyle: { color: look.color, type: look.dash, width: 2 },
      itemStyle: { color: look.color },
      symbol: look.symbol,
      symbolSize: 7,
      showSymbol: count <= 30,
      emphasis: { focus: "series" },
    };
  }

  function band(theme, methods, index, rounds, means, deviations) {
    const look = style(methods, index, theme);
    const hidden = {
      type: "line",
      stack: `band-${index}`,
      stackStrategy: "all",
      symbol: "none",
      silent: true,
      lineStyle: { opacity: 0 },
      tooltip: { show: false },
    };
    return [
      { ...hidden, id: `band-low-${index}`, data: means.map((mean, i) => [rounds[i], mean - deviations[i]]) },
      {
        ...hidden,
        id: `band-high-${index}`,
        data: deviations.map((deviation, i) => [rounds[i], 2 * deviation]),
        areaStyle: { color: look.color, opacity: 0.14 },
      },
    ];
  }

  const curveOf = (study, state, index, point) => judged(study.methods[index], state).curves[state.figure]?.[point];
  const figureOf = (study, state) => metricOf(study, state).figures.find((each) => each.key === state.figure);
  const shownValue = (figure, value) => withUnit(figure, value);

  // What the vertical axis has to hold: everything, or, closer in, how the methods beside FedAvg end.
  function heights(study, state, shown) {
    const others = shown.filter((index) => study.methods[index].label !== "fedavg");
    const closer = state.zoom && others.length > 0;
    const curves = (closer ? others : shown).flatMap((index) =>
      Object.values(judged(study.methods[index], state).curves[state.figure]),
    );
    return curves.flatMap((curve) => {
      const reach = (sign) => curve.values.map((mean, i) => mean + (state.bands ? sign * curve.deviations[i] : 0));
      const values = [...reach(-1), ...reach(1)];
      return closer ? values.filter((_, i) => i % curve.rounds.length >= curve.rounds.length / 2) : values;
    });
  }

  function lossBounds(values) {
    if (smallest(values) < 0) return room(values);
    const sorted = [...values].sort((a, b) => a - b);
    const usual = sorted[Math.floor(0.95 * (sorted.length - 1))];
    const top = Math.min(largest(values), 3 * usual);
    if (sorted[0] > 0.5 * top) return room(values.filter((value) => value <= top)); // far from nothing: only what differs
    return { min: 0, max: Number((1.05 * top).toPrecision(2)) || 1 };
  }

  function convergence(study, state, theme, width, point) {
    const figure = figureOf(study, state);
    const shown = range(study.methods.length).filter(
      (index) => state.visible.has(index) && curveOf(study, state, index, point)?.rounds.length,
    );
    const curve = (index) => curveOf(study, state, index, point);
    const extent = heights(study, state, shown);
    const rounds = [...new Set(shown.flatMap((index) => curve(index).rounds))].sort((a, b) => a - b);
    const at = (index, round) => curve(index).values[curve(index).rounds.indexOf(round)];
    const bands = state.bands
      ? shown.flatMap((index) =>
          band(theme, study.methods, index, curve(index).rounds, curve(index).values, curve(index).deviations),
        )
      : [];
    const lines = shown.map((index) =>
      line(
        study.methods,
        index,
        theme,
        curve(index).rounds.map((round, i) => [round, curve(index).values[i]]),
        rounds.length,
      ),
    );
    const base = frame(theme, width);
    const last = shown.map(
      (index) => `${study.methods[index].shown} ${shownValue(figure, curve(index).values.at(-1))}`,
    );
    const scale = state.zoom && !figure.percent ? room : scaleOf(figure, state.zoom ? 5 : 10);
    return {
      option: {
        ...base,
        xAxis: axis(theme, "Communication round", {
          type: "value",
          min: 1,
          max: Math.max(2, study.rounds),
          minInterval: 1,
          splitLine: { show: false },
        }),
        yAxis: axis(theme, figure.axis, {
          type: "value",
          vertical: true,
          ...(extent.length ? scale(extent) : {}),
        }),
        tooltip: {
          ...base.tooltip,
          trigger: "axis",
          formatter: (items) =>
            rows(
              `Round ${items[0].value[0]}`,
              items
                .filter((item) => item.seriesId.startsWith("method"))
                .sort((a, b) => (figure.higher ? 1 : -1) * (b.value[1] - a.value[1]))
                .map((item) => [item.marker, item.seriesName, shownValue(figure, item.value[1])]),
            ),
        },
        series: [...bands, ...lines],
      },
      legend: legend(study, shown, theme),
      caption: figure.points ? null : figure.caption,
      summary: `Line chart: ${figure.name}${figure.points ? ` of the ${point} models` : ""} by communication round, ${plural(shown.length, "method")}. After the last round: ${last.join(", ")}.`,
      table: {
        head: ["Round", ...shown.map((index) => study.methods[index].shown)],
        body: rounds.map((round) => [round, ...shown.map((index) => at(index, round) ?? "")]),
      },
    };
  }

  // What is known of the clients of the chosen method: their figures, and what they gain where there is Local.
  function people(study, state) {
    const method = study.methods[state.benefit];
    const point = pointOf(method, state);
    const alone = study.methods.find((each) => each.label === "local");
    const ours = judged(method, state).clients[point][state.seed];
    const theirs = alone ? judged(alone, state).clients[pointOf(alone, state)][state.seed] : null;
    const gains = judged(method, state).benefit[point][state.seed];
    const tested = study.tested[state.seed];
    return { method, point, ours, theirs, gains: state.view === "gain" ? gains : null, tested };
  }

  // How many of its test samples a client's figure stands for.
  function counted(metric, value, samples) {
    if (!samples) return "";
    return metric.counted
      ? `${Math.round((value / 100) * samples)} of ${samples} test samples`
      : plural(samples, "test sample");
  }

  function remark(ours, i) {
    if (!ours || ours.value[i] === null) return "not tested";
    const said = [];
    if (ours.diverged.includes(i)) said.push("diverged: its outputs are not finite, and count as wrong");
    if (ours.round[i] !== null) said.push(`last tested in round ${ours.round[i]}`);
    return said.join("; ");
  }

  // Thin lines from low to high through the bars, what the bar says above them, and a word where there is no bar.
  function whiskers(theme, values, intervals, label) {
    const line = (x1, y1, x2, y2) => ({
      type: "line",
      shape: { x1, y1, x2, y2 },
      style: { stroke: theme.text, lineWidth: 1.4, opacity: 0.8 },
    });
    const word = (x, y, text, turned) => ({
      type: "text",
      x,
      y,
      rotation: turned ? Math.PI / 2 : 0,
      style: {
        text,
        fill: turned ? theme.muted : theme.text,
        fontSize: 11,
        align: turned ? "left" : "center",
        verticalAlign: turned ? "middle" : "bottom",
      },
    });
    return {
      type: "custom",
      id: "whiskers",
      silent: true,
      z: 5,
      tooltip: { show: false },
      encode: { x: 0, y: [1, 2] },
      data: values.map((value, i) => [i, ...(value === null ? [0, 0] : (intervals[i] ?? [value, value]))]),
      renderItem: (params, api) => {
        const i = params.dataIndex;
        const [x, low] = api.coord([api.value(0), api.value(1)]);
        const [, high] = api.coord([api.value(0), api.value(2)]);
        const [, zero] = api.coord([api.value(0), 0]);
        const half = Math.min(7, 0.2 * api.size([1, 0])[0]);
        const lines = intervals[i] && values[i] !== null
          ? [line(x, low, x, high), line(x - half, low, x + half, low), line(x - half, high, x + half, high)]
          : [];
        const said = values[i] === null ? word(x, low - 4, "not tested", true) : label && word(x, Math.min(high, zero) - 3, label(i));
        return { type: "group", children: [...lines, ...(said ? [said] : [])] };
      },
    };
  }

  // A bar for each client: what it gains over Local, or, where nothing is to compare with, its own figure.
  function benefit(study, state, theme, width) {
    const { method, point, ours, theirs, gains, tested } = people(study, state);
    const metric = metricOf(study, state);
    const values = gains?.gain ?? ours?.value ?? [];
    const intervals = (gains ? gains.interval : ours?.interval) ?? [];
    const net = (i) =>
      gains && tested?.[i] && gains.net[i] !== null
        ? `, ${signedCount(gains.net[i])} of ${plural(tested[i], "test sample")}`
        : "";
    const say = (value) => (gains ? signed : written)(metric, value);
    const sentence = (i) => {
      if (values[i] === null || values[i] === undefined) return "not tested";
      const sure = intervals[i] ? `95 % interval ${intervals[i].map(say).join(" to ")}` : "";
      const with_ = `${metric.title} ${withUnit(metric, ours.value[i])} with ${method.shown}`;
      const lines = gains
        ? [`${with_}, ${withUnit(metric, theirs.value[i])} alone`, sure, remark(ours, i)]
        : [[with_, counted(metric, ours.value[i], tested?.[i])].filter(Boolean).join(": "), sure, remark(ours, i)];
      return lines.filter(Boolean).join("\n");
    };
    const base = frame(theme, width);
    const longest = largest(values.map((value) => (value === null ? 0 : say(value).length)));
    const roomy = width / Math.max(1, values.length) > Math.max(40, 8 * longest);
    const colour = (i) =>
      ours.diverged.includes(i) ? theme.muted : gains && values[i] < 0 ? theme.loss : theme.gain;
    const missing = range(values.length).filter((i) => values[i] === null);
    const odd = range(values.length).filter((i) => values[i] !== null && remark(ours, i));
    const notes = [
      missing.length ? `Not tested: ${missing.map((i) => client(study, i)).join(", ")}.` : "",
      ...odd.map((i) => `${capital(client(study, i))}: ${remark(ours, i)}.`),
    ].filter(Boolean);
    const direction = metric.higher ? "" : gains ? `; + is better, as less ${metric.title} is` : "; less is better";
    const what = gains
      ? `What each client gains or loses in ${metric.step} with ${method.shown} (${point}) against training alone${direction}.`
      : `Test ${metric.title} of each client with ${method.shown} (${point})${direction}.`;
    const thin = intervals.some(Boolean)
      ? ` Thin lines are 95 % intervals from the client’s number of test samples${gains ? "; where one crosses 0, this client’s difference may be chance" : ""}.`
      : "";
    return {
      option: {
        ...base,
        xAxis: clientAxis(theme, study, "Client", width, {
          axisLine: { onZero: false, lineStyle: { color: theme.line } },
        }),
        yAxis: axis(
          theme,
          gains ? `Gain over Local (${metric.percent ? "percentage points" : metric.title})` : `Test ${metric.heading}`,
          { type: "value", vertical: true, ...(gains ? { boundaryGap: ["10%", "10%"] } : limits(metric)) },
        ),
        tooltip: {
          ...base.tooltip,
          trigger: "axis",
          axisPointer: { type: "shadow" },
          formatter: ([item]) => {
            const i = item.dataIndex;
            const head =
              values[i] === null ? "not tested" : `${say(values[i])} ${gains ? metric.step : metric.heading}${net(i)}`;
            return `<strong>${escape(`${capital(client(study, i))}: ${head}`)}</strong><br>${escape(sentence(i)).replaceAll("\n", "<br>")}`;
          },
        },
        series: [
          {
            type: "bar",
            barMaxWidth: 44,
            data: values.map((value, i) => ({
              value: value ?? "-",
              itemStyle: value === null ? {} : {
                color: colour(i),
                borderRadius: value < 0 ? [0, 0, 3, 3] : [3, 3, 0, 0],
              },
            })),
            markLine: {
              silent: true,
              symbol: "none",
              label: { show: false },
              lineStyle: { color: theme.text, type: "solid", width: 1 },
              data: [{ yAxis: 0 }],
            },
          },
          whiskers(theme, values, intervals, roomy ? (i) => say(values[i]) : null),
        ],
      },
      caption: [what + thin, ...notes].join(" "),
      summary: gains
        ? `Bar chart: gain of each client in ${metric.step} with ${method.shown} over training alone. ${values.filter((g) => g > 0).length} gain, ${values.filter((g) => g < 0).length} lose.`
        : `Bar chart: ${metric.title} of each client with ${method.shown}.`,
      table: {
        head: [
          "Client",
          `${method.shown}: ${metric.heading}`,
          ...(metric.counted ? ["95 % interval"] : []),
          "Test samples",
          ...(gains ? [`Local: ${metric.heading}`, `Gain (${metric.percent ? "points" : metric.title})`] : []),
          ...(gains && metric.counted ? ["95 % interval of the gain", "Samples gained"] : []),
          "Remark",
        ],
        body: range(values.length).map((i) => [
          client(study, i),
          ours.value[i] ?? "not tested",
          ...(metric.counted ? [ours.interval[i]?.map((v) => written(metric, v)).join(" to ") ?? ""] : []),
          tested?.[i] ?? "",
          ...(gains
            ? [theirs.value[i] ?? "not tested", values[i] === null ? "" : signed(metric, values[i])]
            : []),
          ...(gains && metric.counted
            ? [
                gains.interval[i]?.map((v) => signed(metric, v)).join(" to ") ?? "",
                tested?.[i] && gains.net[i] !== null ? signedCount(gains.net[i]) : "",
              ]
            : []),
          remark(ours, i),
        ]),
      },
    };
  }

  const signedCount = (count) => (count > 0 ? "+" : count < 0 ? "−" : "") + Math.abs(count);

  // Every client's figure by round; the best and the worst, or the one that the reader chose, stand out.
  function paths(study, state, theme, width, values) {
    const method = study.methods[state.benefit];
    const point = pointOf(method, state);
    const metric = metricOf(study, state);
    const read = (step, i) => values.at(step, i, 0, 0);
    const last = (i) => range(values.rounds.length).reduce((seen, step) => read(step, i) ?? seen, null);
    const ranked = range(study.clients)
      .filter((i) => last(i) !== null)
      .sort((a, b) => (metric.higher ? 1 : -1) * (last(b) - last(a)));
    const look = (i) => {
      if (state.person === i) return { color: theme.text, width: 3, opacity: 1 };
      if (state.person < 0 && i === ranked[0]) return { color: theme.gain, width: 2.5, opacity: 1 };
      if (state.person < 0 && i === ranked.at(-1)) return { color: theme.loss, width: 2.5, opacity: 1 };
      return { color: theme.muted, width: 1, opacity: 0.55 };
    };
    const standsOut = (i) => look(i).width > 1;
    const order = [...ranked].sort((a, b) => standsOut(a) - standsOut(b));
    const base = frame(theme, width);
    const outstanding = order.filter(standsOut);
    return {
      option: {
        ...base,
        xAxis: axis(theme, "Communication round", {
          type: "value",
          min: 1,
          max: Math.max(2, study.rounds),
          minInterval: 1,
          splitLine: { show: false },
        }),
        yAxis: axis(theme, `Test ${metric.heading}`, { type: "value", vertical: true, ...limits(metric, true) }),
        tooltip: {
          ...base.tooltip,
          trigger: "axis",
          formatter: (items) =>
            rows(
              `Round ${items[0].value[0]}`,
              items
                .filter((item) => typeof item.value[1] === "number")
                .sort((a, b) => (metric.higher ? 1 : -1) * (a.value[1] - b.value[1]))
                .slice(0, 10)
                .map((item) => [item.marker, item.seriesName, withUnit(metric, item.value[1])]),
            ),
        },
        series: order.map((i) => ({
          type: "line",
          id: `client-${i}`,
          name: client(study, i),
          symbol: "circle",
          symbolSize: 5,
          showSymbol: values.rounds.length === 1,
          connectNulls: true,
          data: values.rounds.map((round, step) => [round, read(step, i) ?? "-"]),
          lineStyle: look(i),
          itemStyle: { color: look(i).color },
          emphasis: { focus: "series" },
        })),
      },
      legend: outstanding.map((i) => ({ name: client(study, i), color: look(i).color, dash: "solid", symbol: "none" })),
      caption: `${capital(metric.title)} of every client with ${method.shown} (${point}) by round; ${
        state.person < 0 ? "the best and the worst in the end stand out" : `${client(study, state.person)} stands out`
      }.${keptOnly(values)}`,
      summary: `Line chart: ${metric.title} of each of ${plural(ranked.length, "client")} with ${method.shown} by round.`,
      table: {
        head: ["Round", ...range(study.clients).map((i) => client(study, i))],
        body: values.rounds.map((round, step) => [
          round,
          ...range(study.clients).map((i) => (read(step, i) === null ? "not tested" : written(metric, read(step, i)))),
        ]),
      },
    };
  }

  function labels(study, state, theme, width, height) {
    const counts = study.labels[state.seed];
    const classes = counts[0].length;
    const most = largest(counts.flat());
    const cell = Math.min((width - 70) / counts.length, (height - 80) / classes);
    const base = frame(theme, width);
    const held = counts.map((row) => row.filter((count) => count > 0).length);
    return {
      option: {
        ...base,
        xAxis: clientAxis(theme, study, "Client", width, {
          splitLine: { show: true, lineStyle: { color: theme.line, opacity: 0.5 } },
        }),
        yAxis: axis(theme, "Class", {
          type: "category",
          vertical: true,
          data: range(classes),
          splitLine: { show: true, lineStyle: { color: theme.line, opacity: 0.5 } },
        }),
        tooltip: {
          ...base.tooltip,
          formatter: (item) =>
            `${escape(capital(client(study, item.value[0])))}, class ${item.value[1]}: <strong>${plural(item.value[2], "sample")}</strong>`,
        },
        series: [
          {
            type: "scatter",
            itemStyle: { color: theme.gain, opacity: 0.85 },
            symbolSize: (value) => Math.max(2, 1.25 * cell * Math.sqrt(value[2] / most)),
            data: counts.flatMap((row, holder) => row.flatMap((count, kind) => (count ? [[holder, kind, count]] : []))),
          },
        ],
      },
      summary: `Bubble chart: training samples of each of ${classes} classes at ${plural(counts.length, "client")}. A client holds ${smallest(held)} to ${largest(held)} classes.`,
      table: {
        head: ["Client", ...range(classes).map((kind) => `class ${kind}`)],
        body: counts.map((row, holder) => [client(study, holder), ...row]),
      },
    };
  }

  const named = (observed, study, index) =>
    observed.shape[0] === study.clients ? client(study, index) : `row ${index}`;
  const isMixing = (observed, study) =>
    observed.matrix && observed.shape[0] === study.clients && observed.shape[2] === study.clients;
  const column = (observed, study, index) => (isMixing(observed, study) ? client(study, index) : `column ${index}`);

  // Colours from the smallest to the largest value. Where there are both signs, none is no colour and equal sizes are
  // equally strong, so the shorter side ends before its darkest shade.
  function shades(low, high, theme) {
    if (low >= 0 || high <= 0) return high <= 0 && low < 0 ? [...SEQUENTIAL[theme.name]].reverse() : SEQUENTIAL[theme.name];
    const reach = Math.max(-low, high);
    const palette = DIVERGING[theme.name];
    const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return range(33).map((step) => {
      const value = low + (step / 32) * (high - low);
      const place = ((value / reach + 1) / 2) * (palette.length - 1);
      const below = Math.min(palette.length - 2, Math.floor(place));
      const [one, two] = [channels(palette[below]), channels(palette[below + 1])];
      return `rgb(${one.map((level, i) => Math.round(level + (place - below) * (two[i] - level))).join(",")})`;
    });
  }

  function matrix(study, state, theme, width, values) {
    const observed = study.observed[state.observed];
    const [height, , columns] = observed.shape;
    const mixing = isMixing(observed, study);
    const skip = (row, col) => mixing && state.diagonal && row === col;
    const cells = range(height).flatMap((row) =>
      range(columns).map((col) => [col, row, skip(row, col) ? null : values.at(state.round, row, state.slice, col)]),
    );
    const [low, high] = values.extent(state.slice, skip, state.roundScale ? state.round : null);
    const palette = shades(low, high, theme);
    const base = frame(theme, width);
    const round = values.rounds[state.round];
    const where = (row, col) =>
      mixing
        ? `${capital(client(study, row))} from ${row === col ? "itself" : client(study, col)}`
        : `${named(observed, study, row)}, ${column(observed, study, col)}`;
    return {
      option: {
        ...base,
        grid: { ...base.grid, top: 30, bottom: 80 },
        xAxis: mixing
          ? clientAxis(theme, study, "From client", width, { axisLine: { show: false } })
          : axis(theme, "Column", { type: "category", data: range(columns), axisLine: { show: false } }),
        yAxis: axis(theme, observed.shape[0] === study.clients ? "Client" : "Row", {
          type: "category",
          vertical: true,
          inverse: true,
          nameLocation: "start",
          data: range(height).map((row) => (observed.shape[0] === study.clients ? short(study, row) : row)),
          axisLine: { show: false },
          axisLabel: { color: theme.muted, hideOverlap: true, width: 84, overflow: "truncate" },
        }),
        visualMap: {
          type: "continuous",
          min: low,
          max: high > low ? high : low + (Math.abs(low) || 1),
          orient: "horizontal",
          left: "center",
          bottom: 4,
          itemHeight: Math.min(220, width / 2),
          itemWidth: 12,
          precision: 3,
          calculable: false,
          textStyle: { color: theme.muted },
          text: [number(high), number(low)],
          inRange: { color: palette },
        },
        tooltip: {
          ...base.tooltip,
          formatter: (item) =>
            `${escape(where(item.value[1], item.value[0]))}: <strong>${number(item.value[2])}</strong><br>round ${round}`,
        },
        series: [
          {
            type: "heatmap",
            data: cells,
            itemStyle: { borderColor: theme.page, borderWidth: 1 },
            emphasis: { itemStyle: { borderColor: theme.text, borderWidth: 2 } },
          },
        ],
      },
      caption:
        `${observed.title} after round ${round}${mixing ? ": a row is a client, a column whom it takes from" : ""}. ` +
        `Colours reach from the smallest to the largest value of ${state.roundScale ? "this round" : "all rounds"}.${keptOnly(values)}`,
      summary: `Heat map of ${observed.title}, ${height} by ${columns}, after round ${round}.`,
      table: {
        head: ["", ...range(columns).map((col) => column(observed, study, col))],
        body: range(height).map((row) => [
          named(observed, study, row),
          ...range(columns).map((col) => number(values.at(state.round, row, state.slice, col))),
        ]),
      },
    };
  }

  const keptOnly = (values) =>
    values.rounds.length < values.of ? ` The page holds ${values.rounds.length} of ${values.of} rounds.` : "";

  // Whether the weights that clients give themselves outshine all others, so that a picture with both shows only them.
  function outshone(observed, study, state, values) {
    if (!isMixing(observed, study)) return false;
    const [, high] = values.extent(state.slice, () => false);
    const [, others] = values.extent(state.slice, (row, col) => row === col);
    return others < 0.5 * high;
  }

  // Who gives a client most, in words.
  function sources(study, state, values) {
    const observed = study.observed[state.observed];
    if (!isMixing(observed, study)) return "";
    const weights = range(study.clients).map((col) => [
      col,
      values.at(state.round, state.client, state.slice, col) ?? 0,
    ]);
    const most = weights
      .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
      .filter(([, weight]) => weight !== 0)
      .slice(0, 4);
    const text = most.map(
      ([col, weight]) => `${col === state.client ? "itself" : client(study, col)} (${number(weight)})`,
    );
    return `After round ${values.rounds[state.round]}, ${client(study, state.client)} takes most from ${text.join(", ") || "nobody"}.`;
  }

  // The lines whose names fit beside their ends, the important ones first: a name needs a sixteenth of the height.
  function apart(shown, along, important) {
    const all = shown.flatMap(along);
    const room = (largest(all) - smallest(all)) / 16;
    const kept = new Map();
    for (const i of important.filter((each) => shown.includes(each))) {
      const end = along(i).at(-1);
      if ([...kept.values()].every((other) => Math.abs(other - end) >= room)) kept.set(i, end);
    }
    return kept;
  }

  function trajectory(study, state, theme, width, values) {
    const observed = study.observed[state.observed];
    const mixing = isMixing(observed, study);
    const names = observed.matrix
      ? range(observed.shape[2]).map((col) => column(observed, study, col))
      : range(observed.shape[0]).map((row) => named(observed, study, row));
    const read = (step, i) =>
      observed.matrix ? values.at(step, state.client, state.slice, i) : values.at(step, i, 0, 0);
    const chosen = observed.matrix && !mixing ? -1 : state.client;
    const last = values.rounds.length - 1;
    const ranked = range(names.length)
      .filter((i) => i !== chosen)
      .sort((a, b) => Math.abs(read(last, b)) - Math.abs(read(last, a)));
    const colours = PALETTE[theme.name];
    const look = (i) => {
      if (i === chosen) return { color: theme.text, width: 3, opacity: 1 };
      const rank = ranked.indexOf(i);
      return rank < colours.length
        ? { color: colours[rank], width: 2, opacity: 1 }
        : { color: theme.muted, width: 1, opacity: 0.5 };
    };
    const order = [...ranked].reverse().concat(chosen < 0 || (mixing && state.diagonal) ? [] : [chosen]);
    const labelled = apart(order, (i) => values.rounds.map((_, step) => read(step, i)), [chosen, ...ranked]);
    const base = frame(theme, width);
    const called = (i) => (i === chosen && mixing ? "itself" : names[i]);
    return {
      option: {
        ...base,
        grid: { ...base.grid, right: width < 520 ? 76 : 96 },
        xAxis: axis(theme, "Communication round", {
          type: "value",
          min: 1,
          max: Math.max(2, study.rounds),
          minInterval: 1,
          splitLine: { show: false },
        }),
        yAxis: axis(theme, observed.matrix ? `${observed.name}, ${named(observed, study, state.client)}` : observed.name, {
          type: "value",
          vertical: true,
          scale: true,
        }),
        tooltip: {
          ...base.tooltip,
          trigger: "axis",
          formatter: (items) =>
            rows(
              `Round ${items[0].value[0]}`,
              items
                .sort((a, b) => Math.abs(b.value[1]) - Math.abs(a.value[1]))
                .slice(0, 10)
                .map((item) => [item.marker, item.seriesName, number(item.value[1])]),
            ),
        },
        series: order.map((i) => ({
          type: "line",
          name: called(i),
          symbol: "circle",
          symbolSize: 5,
          showSymbol: values.rounds.length === 1,
          data: values.rounds.map((round, step) => [round, read(step, i)]),
          lineStyle: look(i),
          itemStyle: { color: look(i).color },
          emphasis: { focus: "series" },
          endLabel: { show: labelled.has(i), formatter: called(i), color: theme.text, fontSize: 12 },
        })),
      },
      legend: [...order]
        .reverse()
        .filter((i) => look(i).width > 1)
        .map((i) => ({ name: called(i), color: look(i).color, dash: "solid", symbol: "none" })),
      caption: observed.matrix
        ? `${observed.title}: how the values of ${named(observed, study, state.client)} moved.`
        : `${observed.title} of every client; ${named(observed, study, state.client)} is drawn bold.`,
      summary: `Line chart of ${observed.title} by round, ${plural(names.length, "line")}.`,
      table: {
        head: ["Round", ...range(names.length).map(called)],
        body: values.rounds.map((round, step) => [round, ...range(names.length).map((i) => number(read(step, i)))]),
      },
    };
  }

  function communication(study, state, theme, width) {
    const metric = metricOf(study, state);
    const curve = (method) => judged(method, state).curves.mean[pointOf(method, state)];
    const quality = (method) => curve(method).values;
    const traffic = (method) => curve(method).rounds.map((round) => method.traffic[round]);
    const shown = range(study.methods.length).filter(
      (index) => state.visible.has(index) && quality(study.methods[index]).length,
    );
    const silent = shown.filter((index) => !(traffic(study.methods[index]).at(-1) > 0));
    const talking = shown.filter((index) => !silent.includes(index));
    const totals = talking.map((index) => traffic(study.methods[index]).at(-1));
    const extent = shown.flatMap((index) => quality(study.methods[index]));
    const base = frame(theme, width);
    const level = silent.map((index) => ({
      yAxis: quality(study.methods[index]).at(-1),
      name: `${study.methods[index].shown}: nothing sent`,
    }));
    const lines = talking.map((index) =>
      line(
        study.methods,
        index,
        theme,
        traffic(study.methods[index]).map((mib, i) => [mib, quality(study.methods[index])[i]]),
        study.rounds,
      ),
    );
    return {
      option: {
        ...base,
        xAxis: axis(theme, "Sent and received per client (MiB)", {
          type: largest(totals) > 20 * smallest(totals) ? "log" : "value",
        }),
        yAxis: axis(theme, `Test ${metric.heading}`, {
          type: "value",
          vertical: true,
          ...(extent.length ? scaleOf(metric, 10)(extent) : {}),
        }),
        tooltip: {
          ...base.tooltip,
          trigger: "item",
          formatter: (item) =>
            `<strong>${escape(item.seriesName)}</strong><br>${number(item.value[0])} MiB: ${withUnit(metric, item.value[1])}`,
        },
        series: [
          ...lines,
          {
            type: "line",
            data: [],
            markLine: {
              silent: true,
              symbol: "none",
              data: level,
              lineStyle: { color: theme.text, type: "dashed" },
              label: { formatter: "{b}", position: "insideStartTop", color: theme.text },
            },
          },
        ],
      },
      legend: legend(study, shown, theme),
      summary: `Line chart: ${metric.title} against what a client has sent and received. ${shown.map((index) => `${study.methods[index].shown}: ${number(traffic(study.methods[index]).at(-1) ?? 0)} MiB, ${withUnit(metric, quality(study.methods[index]).at(-1))}`).join("; ")}.`,
      table: {
        head: ["Method", "MiB per client", capital(metric.heading), "Measured at"],
        body: shown.map((index) => {
          const method = study.methods[index];
          return [method.shown, number(traffic(method).at(-1) ?? 0), quality(method).at(-1), pointOf(method, state)];
        }),
      },
    };
  }

  // The packed values of one tensor and seed: whole numbers of 16 bits between `low` and `high`.
  function unpack(packed, [, slices, columns], rows) {
    const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
    const levels = new Uint16Array(bytes.buffer);
    const at = (step, row, slice, col) => {
      const level = levels[((step * rows + row) * slices + slice) * columns + col];
      return level === 65535 ? null : packed.low + (level / 65534) * (packed.high - packed.low);
    };
    const extent = (slice, skip, only = null) => {
      let [low, high] = [Infinity, -Infinity];
      for (const step of only === null ? range(packed.rounds.length) : [only]) {
        for (let row = 0; row < rows; row++) {
          for (let col = 0; col < columns; col++) {
            const value = skip(row, col) ? null : at(step, row, slice, col);
            if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
          }
        }
      }
      return low <= high ? [low, high] : [0, 1];
    };
    return { rounds: packed.rounds, of: packed.of, at, extent };
  }

  return {
    style,
    convergence,
    benefit,
    paths,
    pointOf,
    metricOf,
    judged,
    figureOf,
    labels,
    matrix,
    trajectory,
    sources,
    communication,
    unpack,
    isMixing,
    outshone,
  };
})();
