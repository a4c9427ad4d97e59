// The runs over time. Long pauses are shortened and drawn as breaks.
import { html, useEffect, useMemo, useState } from "./preact.js";
import * as api from "./api.js";
import { Message } from "./conversation.js";
import { clock, count, lasting, outcome } from "./words.js";

const HIGH = matchMedia("(pointer: coarse)").matches ? 44 : 12; // larger targets for touch
const ROW = 2 * HIGH + 28;
const TOP = 44; // the axis and the signs
const LANE = { model: 6, tool: HIGH + 8 }; // separate lanes, so that neither hides the other
const LEFT = 12;
const RIGHT = 40;
const GAP = 3_000; // a longer pause is a break
const BREAK = 56; // pixels
const TICK = 72; // pixels between two ticks at least
const SIGN = 16;
const LETTER = 6.2;
const RUNS = 60;
const DELEGATING = 10; // runs whose delegates are loaded
const MARKS = {
  handover: ["⇄", "handed over"],
  takeover: ["↷", "taken over"],
  recovered: ["✚", "recovered"],
  waiting: ["?", "waiting for you"],
  run_failed: ["✕", "failed"],
  run_interrupted: ["■", "interrupted"],
  rewound: ["↶", "rewound"],
  forked: ["⇉", "forked"],
  compacted: ["≡", "compacted"],
};
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600].map((seconds) => seconds * 1000);

// Returns the time ranges with activity.
export function stretches(spans, marks) {
  const points = [...spans.map((span) => [span.from, span.to]), ...marks.map((mark) => [mark.time, mark.time])];
  points.sort((one, other) => one[0] - other[0]);
  const parts = [];
  for (const [from, to] of points) {
    const last = parts.at(-1);
    if (last && from - last.to <= GAP) last.to = Math.max(last.to, to);
    else parts.push({ from, to });
  }
  return parts;
}

// Returns a function from time to pixels, the ticks of the axis, and the breaks.
export function scale(parts, width) {
  const worked = Math.max(1, parts.reduce((sum, part) => sum + part.to - part.from, 0));
  const each = Math.max(0.001, (width - LEFT - RIGHT - BREAK * Math.max(0, parts.length - 1)) / worked);
  const step = STEPS.find((one) => one * each >= TICK) ?? STEPS.at(-1);
  const ticks = [];
  const breaks = [];
  let at = LEFT;
  for (const [n, part] of parts.entries()) {
    part.at = at;
    const end = at + (part.to - part.from) * each;
    ticks.push({ x: at, label: clock(part.from), first: true });
    for (let time = step; time * each < end - at; time += step) {
      const x = at + time * each;
      // The first label is the time of day, which is wider. A break after the last one has its own label.
      const fits = x > at + 1.3 * TICK && x < end - TICK / 2;
      ticks.push({ x, label: fits ? `+${lasting(time).replace(".0", "")}` : "" });
    }
    if (n < parts.length - 1) breaks.push({ x: end, label: lasting(parts[n + 1].from - part.to) });
    at = end + BREAK;
  }
  const place = (time) => {
    const part = parts.findLast((one) => one.from <= time) ?? parts[0];
    return part.at + (Math.min(time, part.to) - part.from) * each;
  };
  return { place, ticks, breaks };
}

function layout(journal, delegates) {
  const now = Date.now();
  const all = [...journal.runs.values()];
  const runs = all.slice(-RUNS);
  const rows = runs.map((run) => ({
    run,
    spans: run.spans.map((span) => ({ ...span, from: Date.parse(span.start), to: span.end ? Date.parse(span.end) : now })),
    from: Date.parse(run.at),
    to: run.ended ? Date.parse(run.ended) : run.status === "running" ? now : Date.parse(run.spans.at(-1)?.end ?? run.at),
  }));
  for (const run of delegates) {
    const from = Date.parse(run.started_at);
    const after = rows.findLastIndex((row) => row.run.id === run.parent_id || row.run.parent === run.parent_id);
    const facts = { id: run.id, agent: run.agent, parent: run.parent_id, session: run.session_id, status: run.status === "completed" ? "done" : run.status, at: run.started_at };
    if (after >= 0) rows.splice(after + 1, 0, { run: facts, spans: [], from, to: run.ended_at ? Date.parse(run.ended_at) : now });
  }
  const first = rows[0]?.from ?? 0;
  const marks = journal.marks
    .filter((mark) => mark.kind in MARKS && Date.parse(mark.at) >= first)
    .map((mark) => ({ ...mark, time: Date.parse(mark.at) }));
  const spans = rows.flatMap((row) => (row.spans.length ? row.spans : [row]));
  const parts = stretches(spans, marks);
  const width = Math.min(4000, Math.max(736, spans.length * 36 + parts.length * BREAK));
  return { rows, marks, width, hidden: all.length - runs.length, ...scale(parts, width) };
}

// The delegate runs of the latest runs, which are in sessions of their own.
function useDelegates(journal) {
  const [found, setFound] = useState([]);
  useEffect(() => {
    let stopped = false;
    const timer = setTimeout(async () => {
      const pages = await Promise.all([...journal.runs.keys()].slice(-DELEGATING).map((run) => api.delegates(run).catch(() => ({ items: [] }))));
      if (!stopped) setFound(pages.flatMap((page) => page.items));
    }, 200);
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [journal, journal.seq]);
  return found;
}

export function Timeline({ id, journal, version }) {
  const [step, setStep] = useState(null);
  const delegates = useDelegates(journal);
  const { rows, marks, hidden, width, place: x, ticks, breaks } = useMemo(() => layout(journal, delegates), [version, delegates]);
  if (!rows.length) return html`<div class="pane"><div class="page"><p class="empty">No run has started yet.</p></div></div>`;
  const height = TOP + rows.length * ROW + 8;
  const choose = (span) => () => setStep(span);
  const onKey = (span) => (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      setStep(span);
    }
  };
  return html`<div class="pane"><div class="page">
    ${hidden > 0 && html`<p class="hint">${count(hidden, "earlier run")} not shown.</p>`}
    <div class="scroll timeline" tabindex="0" role="group" aria-label="Runs over time">
      <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
        <g class="axis">
          ${ticks.map((tick) => html`<line key=${tick.x} class=${tick.first ? "first" : ""} x1=${tick.x} x2=${tick.x} y1=${tick.label ? 18 : 22} y2=${height} /><text x=${tick.x + 3} y="14">${tick.label}</text>`)}
        </g>
        ${breaks.map(
          (gap) => html`<g key=${gap.x} class="break" role="img" aria-label=${`No activity for ${gap.label}`}>
            <rect x=${gap.x + 14} y="20" width=${BREAK - 28} height=${height - 20} />
            <text x=${gap.x + BREAK / 2} y="14" text-anchor="middle">${gap.label}</text>
            <title>No activity for ${gap.label}.</title>
          </g>`,
        )}
        ${signs(marks, x).map(
          (sign) => html`<g class=${`sign ${sign.kind}`} role="img" aria-label=${sign.text}>
            <line x1=${sign.at} x2=${sign.at} y1="38" y2=${height} />
            <text x=${sign.x} y="34" text-anchor="middle">${MARKS[sign.kind][0]}</text>
            <title>${sign.text} ${clock(sign.iso)}</title>
          </g>`,
        )}
        ${rows.map(({ run, spans, from, to }, n) => {
          const y = TOP + 12 + n * ROW;
          const label = `${run.parent ? "↳ " : ""}${run.agent || "run"} · ${outcome(run.status).label} · ${clock(run.at)}`;
          return html`<g key=${run.id}>
            <text class="run-label" x=${Math.max(LEFT, Math.min(x(from), width - label.length * LETTER - 8))} y=${y}>${label}</text>
            <rect class=${`run ${outcome(run.status).className}${run.session ? " other" : ""}`} x=${x(from)} y=${y + 4} width=${Math.max(3, x(to) - x(from))} height=${2 * HIGH + 6} rx="4" />
            ${run.session &&
            html`<a href=${`#/s/${encodeURIComponent(run.session)}`} aria-label=${`Open the session of ${run.agent}`}>
              <rect class="span delegate" x=${x(from)} y=${y + 12} width=${Math.max(7, x(to) - x(from))} height=${HIGH + 2} rx="2"><title>${run.agent}, ${lasting(to - from)}, in its own session</title></rect>
              <${Label} text=${run.agent} x=${x(from)} y=${y + HIGH / 2 + 16} width=${x(to) - x(from)} />
            </a>`}
            ${spans.map((span) => {
              const name = span.kind === "model" ? "model" : span.label;
              const about = `${span.kind === "model" ? "Model request" : `Tool ${span.label}`}, ${outcome(span.state).label}, ${lasting(span.to - span.from)}`;
              const on = step && step.seq === span.seq ? " chosen" : "";
              return html`<rect
                key=${span.seq}
                class=${`span ${span.kind} ${outcome(span.state).className}${on}`}
                x=${x(span.from)} y=${y + LANE[span.kind]} width=${Math.max(7, x(span.to) - x(span.from))} height=${HIGH} rx="2"
                tabindex="0" role="button" aria-label=${about}
                onClick=${choose(span)} onKeyDown=${onKey(span)}
              ><title>${about}</title></rect>
              <${Label} text=${name} x=${x(span.from)} y=${y + LANE[span.kind] + HIGH / 2 + 3.5} width=${x(span.to) - x(span.from)} />`;
            })}
          </g>`;
        })}
      </svg>
    </div>
    <p class="legend">
      <span class="key model">model request</span> <span class="key tool">tool call</span> <span class="key delegate">delegate</span>
      <span class="key failed">failed, interrupted or cut off</span> <span class="key pause">pause (shortened)</span>
      ${Object.values(MARKS).map(([sign, meaning]) => html`<span>${sign} ${meaning}</span> `)}
    </p>
    ${step ? html`<${Step} key=${step.seq} id=${id} step=${step} />` : html`<p class="hint">Select a step to see its messages, fork a new session from it, or go back to it.</p>`}
  </div></div>`;
}

// The name of a step, if it fits.
function Label({ text, x, y, width }) {
  return text.length * LETTER + 6 <= width && html`<text class="span-label" x=${x + 4} y=${y}>${text}</text>`;
}

// The signs, side by side where they would overlap.
function signs(marks, x) {
  let free = 0;
  return marks
    .toSorted((one, other) => one.time - other.time)
    .map((mark) => {
      const at = x(mark.time);
      const place = Math.max(at, free);
      free = place + SIGN;
      return { kind: mark.kind, text: mark.text, iso: mark.at, at, x: place };
    });
}

function Step({ id, step }) {
  const [place, setPlace] = useState(undefined);
  const [status, setStatus] = useState(null);
  useEffect(() => {
    api.checkpoints(step.run).then(
      ({ items }) => {
        const ordered = items.toSorted((one, other) => one.seq - other.seq);
        setPlace(ordered.find((one) => one.seq >= (step.item?.seq ?? step.seq)) ?? ordered.at(-1) ?? null);
      },
      (error) => setStatus(error.message),
    );
  }, [step]);
  const submit = (action, message) => async () => {
    try {
      await action(id, { checkpoint_id: place.id });
      setStatus(message);
    } catch (error) {
      setStatus(error.message);
    }
  };
  return html`<section class="step" aria-label="Step">
    <h3>${step.kind === "model" ? "Model request" : step.label} <span class="hint">${outcome(step.state).label}, ${lasting(step.to - step.from)}, started ${clock(step.start)}</span></h3>
    ${step.item ? html`<${Message} item=${step.item} />` : html`<p class="hint">This step has no message.</p>`}
    ${place &&
    html`<div class="row">
      <button type="button" onClick=${submit(api.fork, "The fork is being created. The conversation links to it.")}>Fork from here</button>
      <button type="button" onClick=${submit(api.rewind, "The session goes back when its earlier submissions have ended.")}>Go back to here</button>
      <span class="hint">with a history of ${count(place.length, "message")}</span>
    </div>`}
    ${place === null && html`<p class="hint">This run has no checkpoint to continue from.</p>`}
    ${status && html`<p role="status">${status}</p>`}
  </section>`;
}
