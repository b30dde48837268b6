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
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(1);
  const largest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
  const smallest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const range = (count) => Array.from({ length: count }, (_, i) => i);
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

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

  function bounds(values, step = 10) {
    const low = Math.max(0, Math.floor(smallest(values) / step) * step);
    return { min: low, max: Math.min(100, Math.ceil(largest(values) / 5) * 5) || 100 };
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

  // What the vertical axis has to hold: everything, or, closer in, how the methods beside FedAvg end.
  function heights(study, state, shown) {
    const others = shown.filter((index) => study.methods[index].label !== "fedavg");
    const closer = state.zoom && others.length > 0;
    const curves = (closer ? others : shown).flatMap((index) => Object.values(study.methods[index].curves));
    return curves.flatMap((curve) => {
      const reach = (sign) =>
        curve[state.figure].map((mean, i) => mean + (state.bands ? sign * curve[`${state.figure}Deviation`][i] : 0));
      const values = [...reach(-1), ...reach(1)];
      return closer ? values.filter((_, i) => i % curve.rounds.length >= curve.rounds.length / 2) : values;
    });
  }

  function convergence(study, state, theme, width, point) {
    const shown = range(study.methods.length).filter((index) => state.visible.has(index));
    const curve = (index) => study.methods[index].curves[point];
    const extent = heights(study, state, shown);
    const rounds = [...new Set(shown.flatMap((index) => curve(index).rounds))].sort((a, b) => a - b);
    const at = (index, round) => curve(index)[state.figure][curve(index).rounds.indexOf(round)];
    const bands = state.bands
      ? shown.flatMap((index) =>
          band(
            theme,
            study.methods,
            index,
            curve(index).rounds,
            curve(index)[state.figure],
            curve(index)[`${state.figure}Deviation`],
          ),
        )
      : [];
    const lines = shown.map((index) =>
      line(
        study.methods,
        index,
        theme,
        curve(index).rounds.map((round, i) => [round, curve(index)[state.figure][i]]),
        rounds.length,
      ),
    );
    const base = frame(theme, width);
    const last = shown.map((index) => `${study.methods[index].shown} ${curve(index)[state.figure].at(-1)} %`);
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
        yAxis: axis(theme, "Test accuracy (%)", {
          type: "value",
          vertical: true,
          ...(extent.length ? bounds(extent, state.zoom ? 5 : 10) : {}),
        }),
        tooltip: {
          ...base.tooltip,
          trigger: "axis",
          formatter: (items) =>
            rows(
              `Round ${items[0].value[0]}`,
              items
                .filter((item) => item.seriesId.startsWith("method"))
                .sort((a, b) => b.value[1] - a.value[1])
                .map((item) => [item.marker, item.seriesName, `${item.value[1].toFixed(1)} %`]),
            ),
        },
        series: [...bands, ...lines],
      },
      summary: `Line chart: accuracy of the ${point} models by communication round, ${plural(shown.length, "method")}. After the last round: ${last.join(", ")}.`,
      table: {
        head: ["Round", ...shown.map((index) => study.methods[index].shown)],
        body: rounds.map((round) => [round, ...shown.map((index) => at(index, round) ?? "")]),
      },
    };
  }

  function benefit(study, state, theme, width) {
    const method = study.methods[state.benefit];
    const gains = method.benefit[state.seed] ?? [];
    const alone = study.methods.find((each) => each.label === "local").accuracy[state.seed] ?? [];
    const ours = method.accuracy[state.seed] ?? [];
    const sentence = (i) => `${ours[i].toFixed(1)} % with ${method.shown}, ${alone[i].toFixed(1)} % alone`;
    const base = frame(theme, width);
    const roomy = width / Math.max(1, gains.length) > 34;
    return {
      option: {
        ...base,
        xAxis: axis(theme, "Client", {
          type: "category",
          data: gains.map((_, i) => i),
          axisLine: { onZero: false, lineStyle: { color: theme.line } },
        }),
        yAxis: axis(theme, "Gain over Local (percentage points)", {
          type: "value",
          vertical: true,
          boundaryGap: ["10%", "10%"],
        }),
        tooltip: {
          ...base.tooltip,
          trigger: "axis",
          axisPointer: { type: "shadow" },
          formatter: ([item]) =>
            `<strong>Client ${item.dataIndex}: ${signed(item.value)} points</strong><br>${escape(sentence(item.dataIndex))}`,
        },
        series: [
          {
            type: "bar",
            barMaxWidth: 44,
            data: gains.map((gain) => ({
              value: gain,
              itemStyle: {
                color: gain < 0 ? theme.loss : theme.gain,
                borderRadius: gain < 0 ? [0, 0, 3, 3] : [3, 3, 0, 0],
              },
              label: {
                show: roomy,
                position: gain < 0 ? "bottom" : "top",
                color: theme.text,
                formatter: () => signed(gain),
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
        ],
      },
      summary: `Bar chart: gain of each client with ${method.shown} over training alone. ${gains.filter((g) => g > 0).length} gain, ${gains.filter((g) => g < 0).length} lose.`,
      table: {
        head: ["Client", `${method.shown} (%)`, "Local (%)", "Gain (points)"],
        body: gains.map((gain, i) => [i, ours[i], alone[i], signed(gain)]),
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
        xAxis: axis(theme, "Client", {
          type: "category",
          data: range(counts.length),
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
            `Client ${item.value[0]}, class ${item.value[1]}: <strong>${plural(item.value[2], "sample")}</strong>`,
        },
        series: [
          {
            type: "scatter",
            itemStyle: { color: theme.gain, opacity: 0.85 },
            symbolSize: (value) => Math.max(2, 1.25 * cell * Math.sqrt(value[2] / most)),
            data: counts.flatMap((row, client) => row.flatMap((count, kind) => (count ? [[client, kind, count]] : []))),
          },
        ],
      },
      summary: `Bubble chart: training samples of each of ${classes} classes at ${plural(counts.length, "client")}. A client holds ${smallest(held)} to ${largest(held)} classes.`,
      table: {
        head: ["Client", ...range(classes).map((kind) => `class ${kind}`)],
        body: counts.map((row, client) => [client, ...row]),
      },
    };
  }

  const named = (observed, study, index) => (observed.shape[0] === study.clients ? `client ${index}` : `row ${index}`);
  const isMixing = (observed, study) =>
    observed.matrix && observed.shape[0] === study.clients && observed.shape[2] === study.clients;
  const column = (observed, study, index) => (isMixing(observed, study) ? `client ${index}` : `column ${index}`);

  function matrix(study, state, theme, width, values) {
    const observed = study.observed[state.observed];
    const [height, , columns] = observed.shape;
    const mixing = isMixing(observed, study);
    const skip = (row, col) => mixing && state.diagonal && row === col;
    const cells = range(height).flatMap((row) =>
      range(columns).map((col) => [col, row, skip(row, col) ? null : values.at(state.round, row, state.slice, col)]),
    );
    const [low, high] = values.extent(state.slice, skip);
    const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
    const base = frame(theme, width);
    const round = values.rounds[state.round];
    const where = (row, col) =>
      mixing
        ? `Client ${row} from ${row === col ? "itself" : `client ${col}`}`
        : `${named(observed, study, row)}, ${column(observed, study, col)}`;
    return {
      option: {
        ...base,
        grid: { ...base.grid, top: 30, bottom: 80 },
        xAxis: axis(theme, mixing ? "From client" : "Column", {
          type: "category",
          data: range(columns),
          axisLine: { show: false },
        }),
        yAxis: axis(theme, mixing ? "Client" : "Row", {
          type: "category",
          vertical: true,
          inverse: true,
          nameLocation: "start",
          data: range(height),
          axisLine: { show: false },
        }),
        visualMap: {
          type: "continuous",
          min: low < 0 ? -reach : Math.min(0, low),
          max: low < 0 ? reach : high || 1,
          orient: "horizontal",
          left: "center",
          bottom: 4,
          itemHeight: Math.min(220, width / 2),
          itemWidth: 12,
          precision: 3,
          calculable: false,
          textStyle: { color: theme.muted },
          text: [number(low < 0 ? reach : high || 1), number(low < 0 ? -reach : Math.min(0, low))],
          inRange: { color: (low < 0 ? DIVERGING : SEQUENTIAL)[theme.name] },
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
      caption: mixing
        ? `${observed.title} after round ${round}: a row is a client, and says how much it takes from each other client.${keptOnly(study, values)}`
        : `${observed.title} after round ${round}.${keptOnly(study, values)}`,
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

  const keptOnly = (study, values) =>
    values.rounds.length < study.rounds ? ` The page holds ${values.rounds.length} of ${study.rounds} rounds.` : "";

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
      ([col, weight]) => `${col === state.client ? "itself" : `client ${col}`} (${number(weight)})`,
    );
    return `After round ${values.rounds[state.round]}, client ${state.client} takes most from ${text.join(", ") || "nobody"}.`;
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
        yAxis: axis(theme, observed.matrix ? `${observed.name}, client ${state.client}` : observed.name, {
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
      caption: observed.matrix
        ? `${observed.title}: how the values of client ${state.client} moved.`
        : `${observed.title} of every client; client ${state.client} is drawn bold.`,
      summary: `Line chart of ${observed.title} by round, ${plural(names.length, "line")}.`,
      table: {
        head: ["Round", ...range(names.length).map(called)],
        body: values.rounds.map((round, step) => [round, ...range(names.length).map((i) => number(read(step, i)))]),
      },
    };
  }

  function communication(study, state, theme, width) {
    const accuracy = (method) => method.curves[method.headline].mean;
    const shown = range(study.methods.length).filter((index) => state.visible.has(index));
    const silent = shown.filter((index) => !(study.methods[index].traffic.at(-1) > 0));
    const talking = shown.filter((index) => !silent.includes(index));
    const totals = talking.map((index) => study.methods[index].traffic.at(-1));
    const extent = shown.flatMap((index) => accuracy(study.methods[index]));
    const base = frame(theme, width);
    const level = silent.map((index) => ({
      yAxis: accuracy(study.methods[index]).at(-1),
      name: `${study.methods[index].shown}: nothing sent`,
    }));
    const lines = talking.map((index) =>
      line(
        study.methods,
        index,
        theme,
        study.methods[index].traffic.map((mib, i) => [mib, accuracy(study.methods[index])[i]]),
        study.rounds,
      ),
    );
    return {
      option: {
        ...base,
        xAxis: axis(theme, "Sent and received per client (MiB)", {
          type: largest(totals) > 20 * smallest(totals) ? "log" : "value",
        }),
        yAxis: axis(theme, "Test accuracy (%)", {
          type: "value",
          vertical: true,
          ...(extent.length ? bounds(extent) : {}),
        }),
        tooltip: {
          ...base.tooltip,
          trigger: "item",
          formatter: (item) =>
            `<strong>${escape(item.seriesName)}</strong><br>${number(item.value[0])} MiB: ${item.value[1].toFixed(1)} %`,
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
              label: { formatter: "{b}", position: "insideEndTop", color: theme.text },
            },
          },
        ],
      },
      summary: `Line chart: accuracy against what a client has sent and received. ${shown.map((index) => `${study.methods[index].shown}: ${number(study.methods[index].traffic.at(-1) ?? 0)} MiB, ${accuracy(study.methods[index]).at(-1)} %`).join("; ")}.`,
      table: {
        head: ["Method", "MiB per client", "Accuracy (%)", "Measured at"],
        body: shown.map((index) => {
          const method = study.methods[index];
          return [method.shown, number(method.traffic.at(-1) ?? 0), accuracy(method).at(-1), method.headline];
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
    const extent = (slice, skip) => {
      let [low, high] = [Infinity, -Infinity];
      for (let step = 0; step < packed.rounds.length; step++) {
        for (let row = 0; row < rows; row++) {
          for (let col = 0; col < columns; col++) {
            const value = skip(row, col) ? null : at(step, row, slice, col);
            if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
          }
        }
      }
      return low <= high ? [low, high] : [0, 1];
    };
    return { rounds: packed.rounds, at, extent };
  }

  return {
    style,
    convergence,
    benefit,
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
