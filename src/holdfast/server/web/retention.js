// The retention of a session: its policy, hold, export, clean and restore.
import { html, useEffect, useRef, useState } from "./preact.js";
import * as api from "./api.js";
import { count, moment } from "./words.js";

// The policy that applies, and the archive on the server. A server without retention responds with 404.
function useOutlook(id, version) {
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
  return found;
}

function Policy({ outlook }) {
  if (outlook === null) return null;
  const action = { clean: "It is cleaned", erase: "It is erased", archive: "It is archived and cleaned" }[outlook.action] ?? "It is processed";
  const terms = [];
  if (outlook.idle_days !== null) terms.push(`after ${count(outlook.idle_days, "idle day")}`);
  if (outlook.max_age_days !== null) terms.push(`at the age of ${count(outlook.max_age_days, "day")}`);
  return html`<section aria-label="Policy">
    <h3>Policy</h3>
    ${outlook.policy === null
      ? html`<p>No policy applies. This session is kept until someone cleans it.</p>`
      : html`<p><strong>${outlook.policy}</strong>. ${action} ${terms.join(" or ")}${outlook.due_at ? html`, due <time datetime=${outlook.due_at}>${moment(outlook.due_at)}</time>` : ""}.</p>`}
    ${outlook.keep_last_runs !== null && outlook.keep_last_runs !== undefined && html`<p class="hint">The last ${count(outlook.keep_last_runs, "run")} are kept.</p>`}
    ${outlook.problem && html`<p class="hint">It is kept for now: ${outlook.problem}</p>`}
  </section>`;
}

function Hold({ id, detail, onChanged, onProblem }) {
  const [wanted, setWanted] = useState(detail.hold); // the new value, until the server confirms it
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
    <label class="check"><input type="checkbox" checked=${wanted} onChange=${change} /> Hold: prevent cleaning and erasure, by policy or by hand</label>
  </p>`;
}

function Counts({ deleted }) {
  const rows = Object.entries(deleted).filter(([, number]) => number > 0);
  if (!rows.length) return html`<p class="hint">Nothing to delete.</p>`;
  return html`<p class="counts">${rows.map(([name, number]) => html`<span class="chip">${number.toLocaleString()} ${name.replaceAll("_", " ")}</span> `)}</p>`;
}

function archiveWords(outlook) {
  if (outlook?.archive) return "An archive from an earlier clean is on the server. It lacks everything that happened since.";
  return "There is no archive of this session on the server. Only a file that you exported can restore it.";
}

// Asks for confirmation before a clean without an archive.
function ConfirmDelete({ outlook, onDelete, onArchive, onClose }) {
  const box = useRef(null);
  useEffect(() => box.current?.showModal(), []);
  const then = (action) => () => {
    box.current.close();
    action();
  };
  return html`<dialog ref=${box} onClose=${onClose} aria-label="Delete permanently">
    <h2>Delete permanently?</h2>
    <p>You are about to delete everything in this session without an archive.</p>
    <p>${archiveWords(outlook)}</p>
    <div class="row">
      <button type="button" class="danger" onClick=${then(onDelete)}>Delete permanently</button>
      <button type="button" onClick=${then(onArchive)}>Archive and clean</button>
      <button type="button" autofocus onClick=${() => box.current.close()}>Cancel</button>
    </div>
  </dialog>`;
}

function Clean({ id, admin, outlook, onDone }) {
  const [days, setDays] = useState("7");
  const [force, setForce] = useState(false);
  const [keep, setKeep] = useState(true);
  const [result, setResult] = useState(null);
  const [working, setWorking] = useState(false);
  const [confirming, setConfirming] = useState(false);
  const clean = async (dry, archive = keep) => {
    setWorking(true);
    setResult(null);
    try {
      const terms = { idle_days: Number(days) || 0, force, dry_run: dry, archive: archive && !dry ? "media" : null };
      const done = await api.clean(id, terms);
      setResult({ dry, deleted: done.deleted });
      if (!dry) onDone();
    } catch (error) {
      setResult({ refused: error.message });
    }
    setWorking(false);
  };
  return html`<section aria-label="Clean">
    <h3>Clean</h3>
    <p>Deletes all messages, tool calls and files. The empty session stays, and an archive restores it byte for byte.</p>
    <div class="row">
      <label>Only if idle for this many days<input type="number" min="0" max="36500" step="any" value=${days} onInput=${(event) => setDays(event.target.value)} /></label>
    </div>
    <p><label class="check"><input type="checkbox" checked=${keep} onChange=${() => setKeep(!keep)} /> Keep an archive on the server</label></p>
    ${!keep && html`<p class="hint">${archiveWords(outlook)}</p>`}
    ${admin && html`<p><label class="check"><input type="checkbox" checked=${force} onChange=${() => setForce(!force)} /> Force: ignore pending messages and idle time, but not a running turn or a hold</label></p>`}
    <div class="row">
      <button type="button" disabled=${working} onClick=${() => clean(true)}>Preview</button>
      <button type="button" class="danger" disabled=${working} onClick=${() => (keep ? clean(false) : setConfirming(true))}>Clean now</button>
    </div>
    ${result?.refused && html`<p class="banner bad" role="alert">${result.refused}</p>`}
    ${result?.deleted && html`<div role="status"><p>${result.dry ? "This would be deleted:" : "Deleted:"}</p><${Counts} deleted=${result.deleted} /></div>`}
    ${confirming && html`<${ConfirmDelete} outlook=${outlook} onDelete=${() => clean(false, false)} onArchive=${() => clean(false, true)} onClose=${() => setConfirming(false)} />`}
  </section>`;
}

// Restores a cleaned session from the archive on the server or from a file.
export function Restore({ id, onDone }) {
  const outlook = useOutlook(id, 0);
  const [over, setOver] = useState(false);
  const [status, setStatus] = useState(null);
  const [problem, setProblem] = useState(null);
  const field = useRef(null);
  const send = async (file) => {
    setProblem(null);
    setStatus(file ? `Restoring from ${file.name}…` : "Restoring from the archive on the server…");
    try {
      await api.rehydrate(id, file);
      onDone();
    } catch (error) {
      setStatus(null);
      setProblem(error.message);
    }
  };
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    const file = event.dataTransfer.files[0];
    if (file) send(file);
  };
  return html`<div>
    ${outlook?.archive
      ? html`<p>The archive is on the server. <button type="button" class="primary" disabled=${status !== null} onClick=${() => send(null)}>Restore</button></p>`
      : outlook && html`<p>There is no archive on the server. If you exported one, choose the file.</p>`}
    <div class=${`drop${over ? " over" : ""}`} onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <p>Drop an archive here, or <button type="button" onClick=${() => field.current.click()}>choose a file</button></p>
      <input ref=${field} type="file" class="unseen" aria-label="Archive" tabindex="-1" onChange=${(event) => event.target.files[0] && send(event.target.files[0])} />
    </div>
    ${status && html`<p role="status">${status}</p>`}
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
  </div>`;
}

const ACTIONS = {
  clean: "cleaned it",
  rehydrate: "restored it",
  import: "imported it",
  hold: "put it on hold",
  "lift hold": "lifted the hold",
  "settle effect": "settled a tool call",
};

// The details of an audit entry as text. Unknown details are shown unchanged.
function detailWords({ action, detail }) {
  const { deleted, archive, force, idle_days: days, policy, tool, state, ...rest } = detail ?? {};
  const words = [];
  if (deleted) words.push(`deleted ${count(Object.values(deleted).reduce((sum, number) => sum + number, 0), "row")}`);
  if (action === "clean") words.push(archive ? "kept an archive" : "without an archive");
  if (policy) words.push(`by the policy ${policy}`);
  if (force) words.push("with force");
  if (days) words.push(`idle for ${count(days, "day")}`);
  if (tool) words.push(`${tool}: ${state === "completed" ? "done" : state}`);
  const other = Object.entries(rest).filter(([, value]) => ["string", "number"].includes(typeof value) && String(value).length < 80);
  if (!words.length) for (const [name, value] of other) words.push(`${name.replaceAll("_", " ")} ${value}`);
  return words.join(", ");
}

function Audit({ id, version }) {
  const [found, setFound] = useState([]);
  useEffect(() => {
    let stopped = false;
    api.audit(id).then(
      ({ items }) => stopped || setFound(items),
      () => {},
    );
    return () => {
      stopped = true;
    };
  }, [id, version]);
  if (!found.length) return null;
  return html`<section aria-label="Audit">
    <h3>Audit</h3>
    <ul class="plain">
      ${found.map(
        (entry) => html`<li key=${entry.id}>
          <details>
            <summary><strong>${entry.actor}</strong> ${ACTIONS[entry.action] ?? entry.action} <span class="hint">${detailWords(entry)}</span> <time class="hint" datetime=${entry.at}>${moment(entry.at)}</time></summary>
            <pre class="plain mono" tabindex="0">${JSON.stringify(entry.detail, null, 2)}</pre>
          </details>
        </li>`,
      )}
    </ul>
  </section>`;
}

export function Retention({ id, detail, admin, onChanged, onReset }) {
  const [version, setVersion] = useState(0);
  const [problem, setProblem] = useState(null);
  const outlook = useOutlook(id, version);
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
  return html`<div class="pane retention"><div class="page">
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    <${Policy} outlook=${outlook} />
    ${!cleaned &&
    html`<section aria-label="Keep">
      <h3>Keep</h3>
      <${Hold} id=${id} detail=${detail} onChanged=${changed} onProblem=${setProblem} />
      <p><a class="button" href=${api.exportOf(id)} download=${`${id}.ndjson.gz`}>Export the archive</a> <span class="hint">The whole session in one file</span></p>
    </section>
    <${Clean} id=${id} admin=${admin} outlook=${outlook} onDone=${done} />`}
    ${cleaned &&
    html`<section aria-label="Restore">
      <h3>Restore</h3>
      <p>This session was cleaned on ${moment(detail.cleaned_at)}. Its messages, tool calls and files were deleted.</p>
      <${Restore} id=${id} onDone=${done} />
    </section>`}
    ${admin && html`<${Audit} id=${id} version=${version} />`}
  </div></div>`;
}
