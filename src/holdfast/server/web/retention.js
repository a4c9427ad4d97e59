// What is kept of a session, for how long, and what a person may do about it: hold, export, clean, bring back.
import { html, useEffect, useRef, useState } from "./preact.js";
import * as api from "./api.js";
import { count, moment } from "./words.js";

const ENTRIES = 200;

// The policy that applies; a server that has none of this answers 404, and nothing is shown.
function Policy({ id, version }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    let stopped = false;
    api.outlook(id).then(
      (outlook) => stopped || setFound(outlook),
      () => stopped || setFound(null),
    );
    return () => {
      stopped = true;
    };
  }, [id, version]);
  if (found === null) return null;
  const action = { clean: "It is cleaned", erase: "It is erased", archive: "It is archived and cleaned" }[found.action] ?? "It is dealt with";
  const terms = [];
  if (found.idle_days !== null) terms.push(`after ${count(found.idle_days, "idle day")}`);
  if (found.max_age_days !== null) terms.push(`at the age of ${count(found.max_age_days, "day")}`);
  return html`<section aria-label="Policy">
    <h3>Policy</h3>
    ${found.policy === null
      ? html`<p>No policy applies: this session is kept until somebody cleans it.</p>`
      : html`<p><strong>${found.policy}</strong>. ${action} ${terms.join(" or ")}${found.due_at ? html`, due <time datetime=${found.due_at}>${moment(found.due_at)}</time>` : ""}.</p>`}
    ${found.keep_last_runs !== null && found.keep_last_runs !== undefined && html`<p class="hint">The last ${count(found.keep_last_runs, "run")} are kept.</p>`}
    ${found.problem && html`<p class="hint">Against it now: ${found.problem}</p>`}
  </section>`;
}

function Hold({ id, detail, onChanged, onProblem }) {
  const [wanted, setWanted] = useState(detail.hold); // what was just clicked, until the server says so too
  useEffect(() => setWanted(detail.hold), [detail.hold]);
  const change = async () => {
    setWanted(!wanted);
    try {
      await api.changeSession(id, { hold: !wanted });
      onChanged();
    } catch (error) {
      setWanted(detail.hold);
      onProblem(error.message);
    }
  };
  return html`<p>
    <label class="check"><input type="checkbox" checked=${wanted} onChange=${change} /> Hold: nobody and nothing may clean this session</label>
  </p>`;
}

function Counts({ deleted }) {
  const rows = Object.entries(deleted).filter(([, number]) => number > 0);
  if (!rows.length) return html`<p class="hint">There is nothing to delete.</p>`;
  return html`<p class="counts">${rows.map(([name, number]) => html`<span class="chip">${number.toLocaleString()} ${name.replaceAll("_", " ")}</span> `)}</p>`;
}

function Clean({ id, admin, onDone }) {
  const [days, setDays] = useState("7");
  const [force, setForce] = useState(false);
  const [keep, setKeep] = useState(true);
  const [answer, setAnswer] = useState(null);
  const [working, setWorking] = useState(false);
  const ask = async (dry) => {
    setWorking(true);
    setAnswer(null);
    try {
      const terms = { idle_days: Number(days) || 0, force, dry_run: dry, archive: keep && !dry ? "media" : null };
      const done = await api.clean(id, terms);
      setAnswer({ dry, deleted: done.deleted });
      if (!dry) onDone();
    } catch (error) {
      setAnswer({ refused: error.message });
    }
    setWorking(false);
  };
  return html`<section aria-label="Clean">
    <h3>Clean</h3>
    <p>Deletes everything that was said and done. The session stays as an empty shell, and an archive brings it back, byte for byte.</p>
    <div class="row">
      <label>Idle for at least this many days<input type="number" min="0" max="36500" step="any" value=${days} onInput=${(event) => setDays(event.target.value)} /></label>
    </div>
    <p><label class="check"><input type="checkbox" checked=${keep} onChange=${() => setKeep(!keep)} /> Keep an archive on the server</label></p>
    ${admin && html`<p><label class="check"><input type="checkbox" checked=${force} onChange=${() => setForce(!force)} /> Force: whatever waits, but never what runs or is on hold</label></p>`}
    <div class="row">
      <button type="button" disabled=${working} onClick=${() => ask(true)}>What would go?</button>
      <button type="button" class="danger" disabled=${working} onClick=${() => ask(false)}>Clean now</button>
    </div>
    ${answer?.refused && html`<p class="banner bad" role="alert">${answer.refused}</p>`}
    ${answer?.deleted && html`<div role="status"><p>${answer.dry ? "This would be deleted:" : "Deleted:"}</p><${Counts} deleted=${answer.deleted} /></div>`}
  </section>`;
}

function Rehydrate({ id, onDone }) {
  const [over, setOver] = useState(false);
  const [said, setSaid] = useState(null);
  const [problem, setProblem] = useState(null);
  const field = useRef(null);
  const send = async (file) => {
    setProblem(null);
    setSaid(file ? `Bringing it back from ${file.name}…` : "Bringing it back from the stored archive…");
    try {
      await api.rehydrate(id, file);
      onDone();
    } catch (error) {
      setSaid(null);
      setProblem(error.message);
    }
  };
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    const file = event.dataTransfer.files[0];
    if (file) send(file);
  };
  return html`<section aria-label="Rehydrate">
    <h3>Bring it back</h3>
    <div class=${`drop${over ? " over" : ""}`} onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <p>Drop the archive here, or <button type="button" onClick=${() => field.current.click()}>choose the file</button></p>
      <input ref=${field} type="file" class="unseen" aria-label="Archive" tabindex="-1" onChange=${(event) => event.target.files[0] && send(event.target.files[0])} />
      <p class="hint">or <button type="button" class="quiet" onClick=${() => send(null)}>use the one that was kept on the server</button></p>
    </div>
    ${said && html`<p role="status">${said}</p>`}
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
  </section>`;
}

function Audit({ id, version }) {
  const [found, setFound] = useState([]);
  useEffect(() => {
    let stopped = false;
    api.audit(ENTRIES).then(
      ({ items }) => stopped || setFound(items.filter((entry) => entry.session_id === id)),
      () => {},
    );
    return () => {
      stopped = true;
    };
  }, [id, version]);
  if (!found.length) return null;
  return html`<section aria-label="Audit">
    <h3>Audit</h3>
    <div class="scroll">
      <table>
        <thead><tr><th>when</th><th>who</th><th>what</th><th>detail</th></tr></thead>
        <tbody>
          ${found.map(
            (entry) => html`<tr key=${entry.id}>
              <td><time datetime=${entry.at}>${moment(entry.at)}</time></td>
              <td>${entry.actor}</td>
              <td>${entry.action}</td>
              <td class="mono detail">${JSON.stringify(entry.detail)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}

export function Retention({ id, detail, admin, onChanged, onReset }) {
  const [version, setVersion] = useState(0);
  const [problem, setProblem] = useState(null);
  const changed = () => {
    setVersion(version + 1);
    onChanged();
  };
  if (!detail) return html`<div class="pane"></div>`;
  const cleaned = detail.status === "cleaned";
  const done = () => {
    changed();
    onReset();
  };
  return html`<div class="pane retention">
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${cleaned && html`<p class="banner">Cleaned ${moment(detail.cleaned_at)}: nothing of what was said is left here.</p>`}
    <${Policy} id=${id} version=${version} />
    ${!cleaned &&
    html`<section aria-label="Keep">
      <h3>Keep</h3>
      <${Hold} id=${id} detail=${detail} onChanged=${changed} onProblem=${setProblem} />
      <p><a class="button" href=${api.exportOf(id)} download=${`${id}.ndjson.gz`}>Export the archive</a> <span class="hint">all of it, in one file that is checked when it comes back</span></p>
    </section>
    <${Clean} id=${id} admin=${admin} onDone=${done} />`}
    ${cleaned && html`<${Rehydrate} id=${id} onDone=${done} />`}
    ${admin && html`<${Audit} id=${id} version=${version} />`}
  </div>`;
}
