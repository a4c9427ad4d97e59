// Budgets that administrators have set, what was used of each, and a form that sets one.
import { html, useCallback, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { lasting } from "./words.js";

const EVERY = 5000;
const KINDS = { owner: "Owner", session: "Session", turn: "Turns of session", agent: "Agent", store: "All sessions" };
const MEASURES = {
  cost: ["Cost in dollars", (amount) => `$${amount.toLocaleString(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 4 })}`],
  requests: ["Requests", (number) => number.toLocaleString()],
  tokens: ["Tokens", (number) => number.toLocaleString()],
  seconds: ["Working time in seconds", (seconds) => lasting(1000 * seconds)],
};

function limitsOf(budget) {
  return Object.keys(MEASURES).filter((measure) => budget.limits[measure] !== null);
}

function Used({ budget, measure }) {
  const [label, text] = MEASURES[measure];
  const used = budget.used[measure];
  const limit = budget.limits[measure];
  const share = limit ? Math.min(1, used / limit) : 1;
  return html`<div>
    <svg class=${`share ${used >= limit ? "full" : ""}`} viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${100 * share} height="8" /></svg>
    ${text(used)} of ${text(limit)} <span class="hint">${label.toLowerCase()}</span>${used >= limit && html` <span class="badge failed">used up</span>`}
  </div>`;
}

function Form({ onSet }) {
  const [per, setPer] = useState("owner");
  const [problem, setProblem] = useState(null);
  const [done, setDone] = useState(null);
  const set = async (event) => {
    event.preventDefault();
    const form = event.target;
    const given = new FormData(form);
    const body = { per, name: (given.get("name") ?? "").trim() || null, daily: given.has("daily") };
    for (const measure of Object.keys(MEASURES)) {
      const text = given.get(measure).trim();
      if (text) body[measure] = Number(text);
    }
    setProblem(null);
    setDone(null);
    if (!Object.keys(MEASURES).some((measure) => measure in body)) return setProblem("Enter at least one limit.");
    try {
      const { woken } = await api.setBudget(body);
      form.reset();
      setDone(woken ? `The budget is set. ${woken === 1 ? "One session that waited checks" : `${woken} sessions that waited check`} it again.` : "The budget is set.");
      await onSet();
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<form class="setting" aria-label="Set a budget" onSubmit=${set}>
    <h3>Set a budget</h3>
    <div class="row">
      <label>For <select value=${per} onChange=${(event) => setPer(event.target.value)}>
        ${Object.entries(KINDS).map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}
      </select></label>
      ${per !== "store" && html`<label>Name <input name="name" required maxlength="256" autocomplete="off" /></label>`}
      ${per !== "turn" && html`<label class="inline"><input type="checkbox" name="daily" /> each day</label>`}
    </div>
    <div class="row">
      ${Object.entries(MEASURES).map(([measure, [label]]) => html`<label key=${measure}>${label} <input name=${measure} type="number" min="0" step=${measure === "cost" || measure === "seconds" ? "any" : "1"} autocomplete="off" /></label>`)}
    </div>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${done && html`<p class="hint" role="status">${done}</p>`}
    <button class="primary">Set</button>
  </form>`;
}

export function Budgets({ isAdmin }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const read = useCallback(async () => {
    try {
      setFound((await api.budgets()).items);
      setProblem(null);
    } catch (error) {
      setProblem(error.message);
    }
  }, []);
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    const again = async () => {
      if (!document.hidden) await read();
      if (!stopped) timer = setTimeout(again, EVERY);
    };
    again();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, []);
  const remove = ({ per, name, daily }) => async () => {
    try {
      await api.setBudget({ per, name: name || null, daily });
    } catch (error) {
      setProblem(error.message);
    }
    await read();
  };
  return html`<p class="hint">A run whose budget is used up waits before its next model request. Budgets of the settings and of agents are not listed.</p>
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${found !== null && !found.length && html`<p class="empty">No administrator has set a budget.</p>`}
    ${found !== null &&
    found.length > 0 &&
    html`<div class="scroll">
      <table>
        <thead><tr><th>budget</th><th>used</th>${isAdmin && html`<th>actions</th>`}</tr></thead>
        <tbody>
          ${found.map((budget) => {
            const title = [KINDS[budget.per], budget.name, budget.daily ? "per day" : ""].filter(Boolean).join(" ");
            return html`<tr key=${title}>
              <td data-label="budget">${title}</td>
              <td data-label="used">${limitsOf(budget).map((measure) => html`<${Used} key=${measure} budget=${budget} measure=${measure} />`)}</td>
              ${isAdmin && html`<td data-label="actions"><button type="button" aria-label=${`Remove the budget of ${title}`} onClick=${remove(budget)}>Remove</button></td>`}
            </tr>`;
          })}
        </tbody>
      </table>
    </div>`}
    ${isAdmin && html`<${Form} onSet=${read} />`}`;
}
