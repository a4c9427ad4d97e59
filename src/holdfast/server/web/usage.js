// Usage: requests, tokens, cost and working time by day, model, agent, owner or session, with a bar for the share of each.
import { html, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { Budgets } from "./budgets.js";
import { lasting } from "./words.js";

const GROUPS = { day: "Day", model: "Model", agent: "Agent", owner: "Owner", session_id: "Session" };
const PERIODS = { 7: "7 days", 30: "30 days", 90: "90 days", all: "all time" };
const DAY = 86_400_000;
const MOST = 1000;

const dollars = (amount) => `$${amount.toLocaleString(undefined, { minimumFractionDigits: 2, maximumFractionDigits: amount < 1 ? 4 : 2 })}`;
const tokens = (one) => one.input_tokens + one.output_tokens;

function sorted(items, group, size) {
  return items.sort((one, other) => (group === "day" ? other.day.localeCompare(one.day) : size(other) - size(one)));
}

function Name({ group, value }) {
  if (group === "session_id") return html`<a href=${`#/s/${encodeURIComponent(value)}`}>${value}</a>`;
  return html`<span class=${value ? "" : "hint"}>${value || "without a model"}</span>`;
}

export function Usage({ view, me }) {
  return html`<section class="pane wide-list" aria-label="Usage">
    <div class="page">
    <a class="back" href="#/" aria-label="All sessions">←</a>
    <h2>Usage</h2>
    <nav class="tabs" aria-label="Usage by">
      ${Object.entries({ ...GROUPS, budgets: "Budgets" }).map(([name, label]) => html`<a key=${name} href=${`#/usage/${name}`} aria-current=${name === (view || "day") ? "page" : undefined}>${label}</a>`)}
    </nav>
    ${view === "budgets" ? html`<${Budgets} isAdmin=${me.role === "admin"} />` : html`<${Sums} view=${view} />`}
    </div>
  </section>`;
}

function Sums({ view }) {
  const group = Object.hasOwn(GROUPS, view) ? view : "day";
  const [days, setDays] = useState("30");
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    document.title = "Usage · Holdfast";
    let stopped = false;
    const first = days === "all" ? null : new Date(Date.now() - (days - 1) * DAY).toISOString().slice(0, 10);
    setFound(null);
    api.usage(group, first, MOST).then(
      (page) => {
        if (stopped) return;
        setFound({ group, ...page });
        setProblem(null);
      },
      (error) => !stopped && setProblem(error.message),
    );
    return () => {
      stopped = true;
    };
  }, [group, days]);
  const items = found?.group === group ? found.items : null;
  const paid = items?.some((one) => one.cost_usd > 0);
  const size = paid ? (one) => one.cost_usd : tokens;
  const largest = Math.max(0, ...(items ?? []).map(size));
  return html`<p><label class="period">Period <select value=${days} onChange=${(event) => setDays(event.target.value)}>
      ${Object.entries(PERIODS).map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}
    </select></label></p>
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${items === null && !problem && html`<p role="status">Loading…</p>`}
    ${items !== null && !items.length && html`<p class="empty">Nothing was used in this time.</p>`}
    ${items !== null &&
    items.length > 0 &&
    html`<div class="scroll">
      <table>
        <thead><tr><th>${GROUPS[group].toLowerCase()}</th><th>${paid ? "cost" : "tokens"}</th><th>requests</th><th>input</th><th>output</th><th>tool calls</th><th>time</th></tr></thead>
        <tbody>
          ${sorted(items, group, size).map(
            (one) => html`<tr key=${one[group]}>
              <td data-label=${GROUPS[group].toLowerCase()}><${Name} group=${group} value=${one[group]} /></td>
              <td data-label=${paid ? "cost" : "tokens"}>
                <svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${largest ? Math.max(0.5, (100 * size(one)) / largest) : 0} height="8" /></svg>
                ${paid ? dollars(one.cost_usd) : tokens(one).toLocaleString()}${paid && one.unpriced > 0 && html` <span class="hint" title=${`${one.unpriced} requests have no known price`}>and more</span>`}
              </td>
              <td data-label="requests">${one.requests.toLocaleString()}</td>
              <td data-label="input">${one.input_tokens.toLocaleString()}</td>
              <td data-label="output">${one.output_tokens.toLocaleString()}</td>
              <td data-label="tool calls">${one.tool_calls.toLocaleString()}</td>
              <td data-label="time">${lasting(1000 * one.seconds)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    <p class="hint">Days are in UTC. The sums remain when sessions are cleaned or erased.${found.next_cursor && ` These are the first ${MOST.toLocaleString()}; \`holdfast usage\` lists all.`}</p>`}`;
}
