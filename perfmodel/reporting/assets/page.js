"use strict";
(() => {
  // Tables: a heading sorts by its column, again the other way round; long ones begin short, and
  // show the rows that hold what is typed.
  const SHORT = 12;
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const rows = [...body.rows], filter = document.createElement("input"), more = document.createElement("button");
    let whole = rows.length <= SHORT + 3;
    const show = () => {
      const typed = filter.value.trim().toLowerCase();
      let shown = 0;
      for (const row of body.rows) {
        const fits = `${row.textContent}\n${row.dataset.name ?? ""}`.toLowerCase().includes(typed);
        row.hidden = !fits || (!whole && !typed && shown >= SHORT);
        shown += fits;
      }
      more.textContent = whole ? `the first ${SHORT} rows` : `all ${rows.length} rows`;
    };
    if (!whole) {
      filter.type = "search";
      filter.placeholder = "filter";
      filter.setAttribute("aria-label", `filter: ${table.caption.textContent}`);
      filter.addEventListener("input", show);
      more.type = "button";
      more.addEventListener("click", () => { whole = !whole; show(); });
      const tools = document.createElement("span");
      tools.className = "tools";
      tools.append(filter, more);
      table.caption.append(tools);
      show();
    }
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
        body.append(...[...body.rows].sort((a, b) => (up ? compare(a, b) : compare(b, a))));
        show();
      });
    });
  }

  // The timeline: boxes of one step on a canvas, drawn after the page itself has been.
  const source = document.getElementById("timeline-data");
  let begun = false;
  const begin = () => {
    if (begun || !source) return;
    begun = true;
    const { knows, reveal } = timeline(JSON.parse(source.textContent));
    // What a row is of is a button where the timeline knows it.
    for (const row of document.querySelectorAll("table.sortable tbody tr")) {
      const words = [...row.cells].filter((cell) => !cell.classList.contains("number"));
      const named = words.map((cell) => [cell, row.dataset.name ?? (cell.title || cell.textContent)]);
      const [cell, name] = named.filter((each) => knows(each[1])).sort((a, b) => knows(b[1]) - knows(a[1]))[0] ?? [];
      if (!cell) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.title = `${name}: show it in the timeline`;
      button.append(...cell.childNodes);
      button.addEventListener("click", () => reveal(name));
      cell.append(button);
    }
  };
  requestAnimationFrame(() => setTimeout(begin));
  setTimeout(begin, 300);  // a page in the background has no frames

  function timeline({ texts, kinds, notes, views }) {
    const one = (selector) => document.querySelector("#timeline " + selector);
    const canvas = one("canvas"), told = one("#told"), legend = one(".legend");
    const panel = one("#detail"), search = one("input[type=search]"), hits = one("#hits");
    const [modes, steps, ranks] = ["mode", "step", "rank"].map((name) => one(`select[name=${name}]`));
    const HIGH = 20, GAP = 3, AXIS = 24, LEAST = 20;
    const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const known = new Set(texts);  // and operators and modules that notes name
    notes.forEach((note) => note.forEach(([fact, text]) => { if (fact === "operator" || fact === "in") known.add(text); }));
    const stepNames = new Set(views.map((each) => each.step)), causes = kinds.map(([text]) => text.replaceAll("_", " "));
    let view, rows, from, to, dragged = null, wanted = "", exact = false, hit = () => false, matches = [], found = -1, lit = -1, picked = null, colours = {};

    for (const each of views) {
      for (const row of each.rows) {
        let at = 0;
        row.start = row.start.map((step) => (at += step));
      }
    }
    const label = () => (canvas.clientWidth < 600 ? 84 : 150);
    const plot = () => canvas.clientWidth - label();
    const place = (tenths) => label() + ((tenths - from) / (to - from)) * plot();
    const time = (tenths) => {
      const us = tenths / 10;
      return Math.abs(us) >= 1000 ? (us / 1000).toFixed(us >= 1e5 ? 1 : 3) + " ms" : us.toFixed(1) + " us";
    };
    const fill = (select, names, chosen = "", about = {}) => {
      const before = select.value;
      select.replaceChildren(...names.map((name) => new Option(about[name] ?? name, name)));
      for (const name of [chosen, before]) if (names.includes(name)) select.value = name;
      select.parentElement.hidden = names.length < 2;
    };

    function chooseMode() {
      const own = views.filter((each) => each.mode === modes.value);
      const about = Object.fromEntries(own.map((each) => [each.step, `${each.step}, ${time(each.length)}`]));
      const names = own.map((each) => each.step).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
      fill(steps, names, own[0].step, about);
      chooseStep();
    }
    function chooseStep() {
      view = views.find((each) => each.mode === modes.value && each.step === steps.value);
      const own = [...new Set(view.rows.map((row) => row.rank).filter((rank) => rank !== null))];
      fill(ranks, own.length > 1 ? ["all", ...own.map(String)] : own.map(String));
      [from, to] = [0, view.span];
      chooseRank();
    }
    function chooseRank() {
      const all = ranks.value === "all" || !ranks.value;
      view.rows.forEach((row, number) => (row.number = number));
      rows = view.rows.filter((row) => row.rank === null || all || String(row.rank) === ranks.value);
      const used = new Set(rows.flatMap((row) => row.kind));
      legend.replaceChildren(...kinds.flatMap(([text, colour], kind) => {
        if (!used.has(kind)) return [];
        const item = document.createElement("li"), button = document.createElement("button"), swatch = document.createElement("i");
        button.type = "button";
        button.setAttribute("aria-pressed", String(lit === kind));
        swatch.style.background = colour;
        button.append(swatch, text);
        button.addEventListener("click", () => { lit = lit === kind ? -1 : kind; chooseRank(); });
        item.append(button);
        return [item];
      }));
      canvas.setAttribute("aria-label", `Timeline of ${view.step}: ${rows.length} rows, ${time(view.span)}. Arrow keys move, plus and minus zoom, 0 shows all.`);
      one("#note").textContent = view.note;
      picked = null;
      panel.hidden = true;
      look();
      window_(from, to);
    }

    // Search: boxes whose name, operator or module holds the text, or is it; the others fade.
    function look() {
      wanted = search.value.trim().toLowerCase();
      const fits = (text) => wanted && (exact ? text.toLowerCase() === wanted : text.toLowerCase().includes(wanted));
      const named = new Set(texts.flatMap((text, at) => (fits(text) ? [at] : [])));
      const noted = new Set(notes.flatMap((note, at) => (note.some(([fact, text]) => (fact === "operator" || fact === "in") && fits(text)) ? [at] : [])));
      hit = (row, i) => named.has(row.text[i]) || Boolean(row.about && noted.has(row.about[i]));
      matches = [];
      let sum = 0;
      if (wanted) rows.forEach((row) => row.text.forEach((text, i) => {
        if (!hit(row, i)) return;
        matches.push([row, i]);
        if (row.rank !== null) sum += row.length[i];
      }));
      matches.sort(([a, i], [b, k]) => a.start[i] - b.start[k]);
      found = -1;
      hits.textContent = wanted ? `${matches.length} boxes, ${time(sum)} on threads and streams` : "";
    }
    function next() {
      if (!matches.length) return;
      found = (found + 1) % matches.length;
      const [row, i] = matches[found];
      const span = Math.max(row.length[i] * 8, LEAST);
      window_(row.start[i] - span / 2, row.start[i] + span / 2);
      detail(row, i);
    }
    const cause = (name) => causes.indexOf(name.replaceAll("_", " "));
    const knows = (name) =>  // more of what stands for fewer boxes
      (name.length > 1 && known.has(name)) ? 2 : Number(cause(name) >= 0 || stepNames.has(name));
    function reveal(name) {  // a step, a cause, or the boxes of that name and of them the longest
      [exact, lit] = [true, known.has(name) ? -1 : cause(name)];
      search.value = known.has(name) ? name : "";
      if (stepNames.has(name)) {
        if (![...steps.options].some((option) => option.value === name)) return;
        steps.value = name;
      } else if (ranks.options.length > 1) ranks.value = "all";
      chooseStep();
      const own = matches.filter(([row]) => row.rank !== null);
      if (own.length) detail(...own.reduce((a, b) => (b[0].length[b[1]] > a[0].length[a[1]] ? b : a)));
      one(".controls").scrollIntoView({ block: "start" });
      canvas.focus({ preventScroll: true });
    }

    function ticks() {
      const rough = (to - from) / Math.max(plot() / 110, 2);
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
      const all = [];
      for (let n = Math.ceil(from / step); n * step <= to; n++) all.push(n * step);
      // One unit for all, with as many decimals as tell neighbours apart.
      const [unit, tenths] = [["s", 1e7], ["ms", 1e4], ["us", 10]].find(([, size]) => to >= size) ?? ["us", 10];
      const decimals = Math.max(0, -Math.floor(Math.log10(step / tenths) + 1e-9));
      return all.map((t) => [t, `${(t / tenths).toFixed(decimals)} ${unit}`]);
    }
    function first(row, t) {  // the first box that ends after t; boxes of a row do not overlap
      let low = 0, high = row.start.length;
      while (low < high) {
        const mid = (low + high) >> 1;
        if (row.start[mid] + row.length[mid] < t) low = mid + 1;
        else high = mid;
      }
      return low;
    }
    const top = (number) => AXIS + GAP + number * (HIGH + GAP);
    const dark = (colour) => {
      const part = (at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2;
      return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5) < 0.25;
    };

    let queued = false;
    function draw() {
      if (queued) return;
      queued = true;
      requestAnimationFrame(() => { queued = false; paint(); });
    }
    function paint() {
      const scale = window.devicePixelRatio || 1, wide = canvas.clientWidth;
      const height = top(rows.length);
      const [across, down] = [Math.round(wide * scale), Math.round(height * scale)];
      if (canvas.width !== across || canvas.height !== down) {
        canvas.style.height = height + "px";
        canvas.width = across;
        canvas.height = down;
      }
      const pen = canvas.getContext("2d", { alpha: false });
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.fillStyle = colours.paper;
      pen.fillRect(0, 0, wide, height);
      const rate = plot() / (to - from), left = label(), plain = !wanted && lit < 0;
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      for (const [t, text] of ticks()) {
        const x = place(t);
        pen.fillStyle = colours.line;
        pen.fillRect(x, AXIS, 1, height - AXIS);
        pen.fillStyle = colours.faint;
        if (x + 2 + pen.measureText(text).width < wide) pen.fillText(text, x + 2, AXIS / 2);
      }
      rows.forEach((row, number) => {
        const y = top(number);
        if (number && row.rank !== rows[number - 1].rank) {
          pen.fillStyle = colours.faint;
          pen.fillRect(0, y - GAP / 2 - 0.5, wide, 1);
        }
        pen.save();
        pen.beginPath();
        pen.rect(label(), y, plot(), HIGH);
        pen.clip();
        let last = -1, dim = -1;  // the last pixel that was drawn, and drawn faded
        for (let i = first(row, from); i < row.start.length && row.start[i] <= to; i++) {
          const x = left + (row.start[i] - from) * rate;
          const width = Math.max(row.length[i] * rate, 0.7);
          const faded = !plain && ((wanted && !hit(row, i)) || (lit >= 0 && row.kind[i] !== lit));
          if (width < 1 && Math.floor(x) === (faded ? dim : last)) {
            if (plain) i = Math.max(first(row, from + (last + 1 - left) / rate) - 1, i);
            if (plain || faded) continue;
          }
          if (faded) dim = Math.floor(x);
          else last = Math.floor(x);
          const colour = kinds[row.kind[i]][1];
          if (!plain) pen.globalAlpha = faded ? 0.15 : 1;
          pen.fillStyle = colour === "#000000" ? colours.ink : colour;
          pen.fillRect(x, y, width, HIGH);
          if (!plain) pen.globalAlpha = 1;
          if (picked && picked[0] === row && picked[1] === i) {
            pen.strokeStyle = colours.ink;
            pen.lineWidth = 2;
            pen.strokeRect(x + 1, y + 1, Math.max(width - 2, 2), HIGH - 2);
          }
          if (width > 45 && !faded) {
            pen.save();
            pen.beginPath();
            pen.rect(x, y, width - 2, HIGH);
            pen.clip();
            pen.fillStyle = dark(colour) ? "#fff" : "#222";
            pen.fillText(texts[row.text[i]].slice(0, 80), Math.max(x, left) + 3, y + HIGH / 2);
            pen.restore();
          }
        }
        pen.restore();
        pen.fillStyle = colours.ink;
        pen.fillText(row.name.slice(0, 26), 2, y + HIGH / 2, label() - 6);
      });
      // The critical path, through the rows that it takes.
      const at = new Map(rows.map((row, number) => [row.number, number]));
      pen.save();
      pen.beginPath();
      pen.rect(label(), AXIS, plot(), height);
      pen.clip();
      pen.beginPath();
      let before = null;
      for (const [number, low, high] of view.path) {
        const y = at.has(number) ? top(at.get(number)) + HIGH - 1 : null;
        if (y !== null && before === y && (high - low) * rate < 0.5) continue;
        if (y !== null && high >= from && low <= to) {
          if (before === null) pen.moveTo(place(low), y);
          else pen.lineTo(place(low), y);
          pen.lineTo(place(high), y);
          before = y;
        } else before = null;
      }
      pen.lineWidth = 1.6;
      pen.strokeStyle = colours.ink;
      pen.stroke();
      pen.restore();
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
      const t = from + ((event.clientX - box.left - label()) / plot()) * (to - from);
      const row = rows[Math.floor((event.clientY - box.top - AXIS - GAP) / (HIGH + GAP))];
      if (!row || t < from) return null;
      const reach = (2 * (to - from)) / plot();
      let i = first(row, t - reach);
      if (i + 1 < row.start.length && row.start[i] + row.length[i] < t && row.start[i + 1] <= t) i += 1;
      return i < row.start.length && row.start[i] <= t + reach ? [row, i] : null;
    }
    const short = ([row, i]) =>
      `${row.name}: ${texts[row.text[i]]}, ${kinds[row.kind[i]][0]}, ${time(row.length[i])} at ${time(row.start[i])}`;

    // What is known of one box.
    function detail(row, i) {
      picked = [row, i];
      const facts = [
        ["what", texts[row.text[i]]],
        ["where", row.name],
        ["why", kinds[row.kind[i]][0]],
        ["time", `${time(row.length[i])}, from ${time(row.start[i])} to ${time(row.start[i] + row.length[i])}`],
      ];
      if (row.launch && row.launch[i] >= 0) facts.push(["launched", `${time(row.launch[i])} before it began`]);
      if (row.about) facts.push(...notes[row.about[i]]);
      if (row.after) facts.push(...notes[row.after[i]]);
      panel.querySelector("dl").replaceChildren(...facts.flatMap(([name, text]) => {
        const [term, what] = ["dt", "dd"].map((tag) => document.createElement(tag));
        term.textContent = name;
        what.textContent = text;
        return [term, what];
      }));
      panel.hidden = false;
      draw();
    }
    function close() {
      picked = null;
      panel.hidden = true;
      draw();
    }

    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, from + ((event.clientX - box.left - label()) / plot()) * (to - from));
    }, { passive: false });
    let pressed = 0;
    canvas.addEventListener("pointerdown", (event) => { dragged = pressed = event.clientX; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", (event) => {
      if (dragged !== null && Math.abs(event.clientX - pressed) < 4) {
        const box = at(event);
        if (box) detail(...box);
        else close();
      }
      dragged = null;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged !== null) {
        if (Math.abs(event.clientX - pressed) < 4) return;
        const shift = ((dragged - event.clientX) / plot()) * (to - from);
        dragged = event.clientX;
        window_(from + shift, to + shift);
      } else {
        const box = at(event);
        told.textContent = box ? short(box) : "";
      }
    });
    const beside = (step) => {
      if (!picked) return;
      const i = picked[1] + step;
      if (i < 0 || i >= picked[0].start.length) return;
      const middle = picked[0].start[i] + picked[0].length[i] / 2;
      if (middle < from || middle > to) window_(middle - (to - from) / 2, middle + (to - from) / 2);
      detail(picked[0], i);
    };
    const keys = {
      "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), "0": () => window_(0, view.span),
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), Home: () => window_(0, to - from), End: () => window_(view.span - to + from, view.span),
      "/": () => search.focus(), n: next, ",": () => beside(-1), ".": () => beside(1), Escape: close,
    };
    canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    search.addEventListener("input", () => { exact = false; look(); draw(); });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") next();
      if (event.key === "Escape") { search.value = ""; look(); canvas.focus(); draw(); }
    });
    panel.querySelector("button").addEventListener("click", close);
    for (const button of document.querySelectorAll("#timeline button[data-key]"))
      button.addEventListener("click", () => keys[button.dataset.key]());
    modes.addEventListener("change", chooseMode);
    steps.addEventListener("change", chooseStep);
    ranks.addEventListener("change", chooseRank);
    window.addEventListener("resize", draw);
    window.addEventListener("beforeprint", paint);
    const look_ = () => {
      colours = { ink: style("--ink"), line: style("--line"), faint: style("--faint"), paper: style("--paper") };
      if (view) draw();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", look_);
    look_();
    fill(modes, [...new Set(views.map((each) => each.mode))]);
    chooseMode();
    paint();
    canvas.dataset.ready = "1";
    return { knows, reveal };
  }
})();
