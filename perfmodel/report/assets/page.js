"use strict";
(() => {
  // Tables: a heading sorts by its column, again the other way round.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => {
          const cell = row.cells[column];
          return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
        };
        const compare = (a, b) => {
          const [x, y] = [value(a), value(b)];
          if (typeof x === typeof y) return x < y ? -1 : x > y ? 1 : 0;
          return typeof x === "number" ? 1 : -1;
        };
        const rows = [...body.rows].sort((a, b) => (up ? compare(a, b) : compare(b, a)));
        body.append(...rows);
      });
    });
  }

  // The timeline: boxes of one step on a canvas.
  const source = document.getElementById("timeline-data");
  if (!source) return;
  const views = JSON.parse(source.textContent);
  const canvas = document.querySelector("#timeline canvas");
  const told = document.getElementById("told");
  const legend = document.querySelector("#timeline .legend");
  const chosen = document.querySelector("#timeline select");
  const LABEL = 150, HIGH = 22, GAP = 4, AXIS = 24, LEAST = 20;
  let view, from, to, dragged = null;

  for (const each of views) {
    for (const row of each.rows) {
      let at = 0;
      row.start = row.start.map((step) => (at += step));
    }
  }
  views.forEach((each, number) => chosen.add(new Option(each.name, number)));

  const time = (tenths) => {
    const us = tenths / 10;
    return us >= 1000 ? (us / 1000).toFixed(us >= 1e5 ? 1 : 3) + " ms" : us.toFixed(1) + " us";
  };
  const plot = () => canvas.clientWidth - LABEL;
  const place = (tenths) => LABEL + ((tenths - from) / (to - from)) * plot();

  function show(number) {
    view = views[number];
    [from, to] = [0, view.span];
    legend.replaceChildren(...view.kinds.map(([text, colour]) => {
      const item = document.createElement("li");
      const swatch = document.createElement("i");
      swatch.style.background = colour;
      item.append(swatch, text);
      return item;
    }));
    canvas.setAttribute("aria-label", `Timeline of ${view.step}: ${view.rows.length} rows, ${time(view.span)}. Arrow keys move, plus and minus zoom, 0 shows all.`);
    draw();
  }

  function ticks() {
    const rough = (to - from) / 8;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const found = [];
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(t);
    return found;
  }

  function draw() {
    const scale = window.devicePixelRatio || 1;
    const height = AXIS + view.rows.length * (HIGH + GAP) + GAP;
    canvas.style.height = height + "px";
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, canvas.clientWidth, height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const t of ticks()) {
      const x = place(t);
      pen.fillStyle = "#e6e6e6";
      pen.fillRect(x, AXIS, 1, height - AXIS);
      pen.fillStyle = "#444";
      pen.fillText(time(t), Math.min(x + 2, canvas.clientWidth - 60), AXIS / 2);
    }
    view.rows.forEach((row, number) => {
      const y = AXIS + GAP + number * (HIGH + GAP);
      pen.save();
      pen.beginPath();
      pen.rect(LABEL, y, plot(), HIGH);
      pen.clip();
      let last = -1;
      for (let i = 0; i < row.start.length; i++) {
        const end = row.start[i] + row.length[i];
        if (end < from || row.start[i] > to) continue;
        const x = place(row.start[i]);
        const width = Math.max(place(end) - x, 0.7);
        if (width < 1 && Math.floor(x) === last) continue;
        last = Math.floor(x);
        pen.fillStyle = view.kinds[row.kind[i]][1];
        pen.fillRect(x, y, width, HIGH);
        if (width > 45) {
          const left = Math.max(x, LABEL) + 3;
          pen.save();
          pen.beginPath();
          pen.rect(x, y, width - 2, HIGH);
          pen.clip();
          pen.fillStyle = dark(view.kinds[row.kind[i]][1]) ? "#fff" : "#222";
          pen.fillText(view.texts[row.text[i]].slice(0, 80), left, y + HIGH / 2);
          pen.restore();
        }
      }
      pen.restore();
      pen.fillStyle = "#222";
      pen.fillText(row.name.slice(0, 24), 2, y + HIGH / 2, LABEL - 8);
    });
  }

  function dark(colour) {
    const part = (at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2;
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5) < 0.25;
  }

  function window_(low, high) {
    const span = Math.min(Math.max(high - low, LEAST), view.span);
    from = Math.min(Math.max(low, 0), view.span - span);
    to = from + span;
    canvas.dataset.from = from;
    canvas.dataset.to = to;
    draw();
  }
  const zoom = (factor, around = (from + to) / 2) =>
    window_(around - (around - from) * factor, around + (to - around) * factor);
  const move = (share) => window_(from + (to - from) * share, to + (to - from) * share);

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const t = from + ((event.clientX - box.left - LABEL) / plot()) * (to - from);
    const row = view.rows[Math.floor((event.clientY - box.top - AXIS - GAP) / (HIGH + GAP))];
    if (!row || t < from) return "";
    const i = row.start.findIndex((low, k) => low <= t && t <= low + row.length[k]);
    if (i < 0) return "";
    return `${row.name}: ${view.texts[row.text[i]]}, ${view.kinds[row.kind[i]][0]}, ${time(row.length[i])} at ${time(row.start[i])}`;
  }

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, from + ((event.clientX - box.left - LABEL) / plot()) * (to - from));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { dragged = event.clientX; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged !== null) {
      const shift = ((dragged - event.clientX) / plot()) * (to - from);
      dragged = event.clientX;
      window_(from + shift, to + shift);
    } else told.textContent = at(event);
  });
  const keys = {
    "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), "0": () => window_(0, view.span),
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), Home: () => move(-from), End: () => move(view.span),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  for (const button of document.querySelectorAll("#timeline button[data-key]"))
    button.addEventListener("click", () => keys[button.dataset.key]());
  chosen.addEventListener("change", () => show(Number(chosen.value)));
  window.addEventListener("resize", draw);
  window.addEventListener("beforeprint", draw);
  show(0);
  window_(0, view.span);
})();
