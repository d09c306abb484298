// The web page in headless Chromium, as someone without a mouse uses it. usage: node page.mjs NIBBLE MODEL [FOLDER for screenshots]
// Starts its own servers: one that anybody may use, one with a key, one that ends in the middle of an answer.
import axe from "axe-core";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import puppeteer from "puppeteer-core";

const [nibble, model, folder] = process.argv.slice(2);
const executablePath = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(p => p && existsSync(p));
if (!executablePath) {
  console.log("skipped: the web page (chromium is not installed)");
  process.exit(77);
}
const children = [];
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });

async function end(code) {
  await browser.close();
  for (const c of children) c.kill("SIGKILL");
  process.exit(code);
}

async function check(label, ok, found) {
  console.log((ok ? "ok " : "not ok ") + label + (ok || found === undefined ? "" : ": " + JSON.stringify(found)));
  if (!ok) await end(1);
}

function serve(...options) {
  const child = spawn(nibble, ["serve", model, "--port", "0", "--no-request-log", ...options], { stdio: ["ignore", "ignore", "pipe"] });
  children.push(child);
  return new Promise((done, failed) => {
    let text = "";
    child.stderr.on("data", d => {
      text += d;
      const m = /is ready at (http\S+)/.exec(text);
      if (m) done({ child, url: m[1] });
    });
    child.on("exit", () => failed(new Error("the server ended: " + text)));
  });
}

/* A page, and what went wrong or outside on it. */
async function open(url, width, height, scheme) {
  const page = await browser.newPage(), bad = [], bodies = [];
  page.setDefaultTimeout(60000);
  page.on("pageerror", e => bad.push("script: " + e.message));
  page.on("request", r => {
    if (!r.url().startsWith(url) && !r.url().startsWith("data:")) bad.push("outside: " + r.url());
    if (r.method() === "POST") bodies.push(JSON.parse(r.postData()));
  });
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(url + "/");
  await page.waitForFunction(() => document.getElementById("model").textContent !== "…");
  return { page, bad, bodies };
}

const text = (page, id) => page.$eval("#" + id, e => e.textContent);
const value = (page, id) => page.$eval("#" + id, e => e.value);
const focus = page => page.evaluate(() => document.activeElement.id || document.activeElement.tagName);
const idle = page => page.waitForFunction(() => document.getElementById("stop").disabled);
const answers = page => page.$$eval(".assistant", all => all.map(e => e.textContent));
const shot = (page, name) => folder && page.screenshot({ path: `${folder}/${name}.png` });

/* Tab until the element has the focus. */
async function tab(page, id) {
  for (let i = 0; i < 30; i++) {
    if (await focus(page) === id) return true;
    await page.keyboard.press("Tab");
  }
  return false;
}

async function retype(page, id, words) {
  await check("keyboard reaches " + id, await tab(page, id), await focus(page));
  await page.keyboard.down("Control");
  await page.keyboard.press("a");
  await page.keyboard.up("Control");
  await page.keyboard.press("Backspace");
  await page.keyboard.type(words);
}

/* Open the settings by keyboard. */
async function settings(page) {
  await page.focus("summary");
  await page.keyboard.press("Enter");
  await check("the settings open by keyboard", await page.$eval("#more", e => e.open));
}

async function violations(page) {
  await page.evaluate(axe.source + ";0");
  return page.evaluate(async () => (await axe.run()).violations.map(v => v.id + " " + v.nodes.map(n => n.target).join(" ")));
}

const open_to_all = await serve();
const { page, bad, bodies } = await open(open_to_all.url, 1280, 800, "light");

await check("model, bits and context are told", /\d bit|context [\d,]+/.test(await text(page, "model")), await text(page, "model"));
await page.waitForFunction(() => /running/.test(document.getElementById("loadtext").textContent));
await check("the text field has the focus", await focus(page) === "text");
await shot(page, "empty-light-wide");

await page.keyboard.type("It is a truth");
await page.keyboard.down("Shift");
await page.keyboard.press("Enter");
await page.keyboard.up("Shift");
await page.keyboard.type("universally acknowledged");
await check("Shift+Enter makes a line", await value(page, "text") === "It is a truth\nuniversally acknowledged", await value(page, "text"));
await settings(page);
await retype(page, "max_tokens", "24");
await retype(page, "temperature", "0");
await shot(page, "settings-light-wide");
await page.focus("#text");
await page.keyboard.press("Enter");
await page.waitForSelector(".figures");
await idle(page);
await check("an answer with its figures", /prompt tokens \(\d+ cached\) · 24 tokens .*tok\/s/.test((await answers(page))[0]), await answers(page));
await check("an answer cut short says so", /cut at the longest answer/.test((await answers(page))[0]));
await check("the settings are sent", bodies[0].max_tokens === 24 && bodies[0].temperature === 0 && bodies[0].stream === true, bodies[0]);
await check("the focus is back", await focus(page) === "text");
await page.keyboard.type("And then?");
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.querySelectorAll(".figures").length === 2);
await check("the conversation is sent", !bodies[1].messages || bodies[1].messages.map(m => m.role).join(" ") === "user assistant user", bodies[1]);
await check("the prefix is found in the cache", /\([1-9]\d* cached\)/.test((await answers(page))[1]), await answers(page));
await shot(page, "chat-light-wide");

await retype(page, "max_tokens", "");
await page.focus("#text");
await page.keyboard.type("Go on");
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.querySelectorAll(".assistant")[2]?.textContent.length > 20);
await page.keyboard.press("Escape");
await idle(page);
await check("Escape stops", (await answers(page))[2].length > 20);
await page.waitForFunction(() => /^0 running/.test(document.getElementById("loadtext").textContent));
await check("and the server knows", true);

await page.keyboard.type("More");
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.querySelectorAll(".assistant")[3]?.textContent.length > 20);
await check("keyboard reaches clear", await tab(page, "clear"));
await page.keyboard.press("Enter");
await idle(page);
await check("a new chat is empty", (await answers(page)).length === 0);
await retype(page, "max_tokens", "4");
await page.focus("#text");
await page.keyboard.type("Anew");
await page.keyboard.press("Enter");
await page.waitForSelector(".figures");
await idle(page);
await check("what ended with the old chat is not in the new one", !bodies.at(-1).messages || bodies.at(-1).messages.length === 1, bodies.at(-1));

await retype(page, "temperature", "7");
await page.focus("#text");
await page.keyboard.type("Too hot");
await page.keyboard.press("Enter");
await page.waitForSelector("[role=alert]");
await idle(page);
await check("a refusal is shown in the server's words", /temperature must be/.test(await page.$eval("[role=alert]", e => e.textContent)));
await check("and the text can be sent again", await value(page, "text") === "Too hot", await value(page, "text"));
await shot(page, "error-light-wide");
await check("no accessibility violations (light)", (await violations(page)).length === 0, await violations(page));
await check("nothing outside, no script error", bad.length === 0, bad);

for (const [width, height, size] of [[1280, 800, "wide"], [360, 640, "narrow"]])
  for (const scheme of ["light", "dark"]) {
    const other = await open(open_to_all.url, width, height, scheme);
    await other.page.keyboard.type("Say hello to a long word: " + "Rindfleischetikettierung".repeat(6));
    await settings(other.page);
    await retype(other.page, "max_tokens", "24");
    await other.page.focus("#text");
    await other.page.keyboard.press("Enter");
    await other.page.waitForSelector(".figures");
    const over = await other.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    await check(`${scheme}, ${size}: nothing is cut off sideways`, over <= 0, over);
    const found = await violations(other.page);
    await check(`${scheme}, ${size}: no accessibility violations`, found.length === 0, found);
    await shot(other.page, `answer-${scheme}-${size}`);
    await check(`${scheme}, ${size}: nothing outside, no script error`, other.bad.length === 0, other.bad);
    await other.page.close();
  }

const locked = await serve("--api-key", "secret");
const keyed = await open(locked.url, 800, 600, "dark");
await check("a missing key is told", /needs an API key/.test(await text(keyed.page, "model")), await text(keyed.page, "model"));
await shot(keyed.page, "key-dark");
await settings(keyed.page);
await retype(keyed.page, "key", "secret");
await retype(keyed.page, "text", "Hello");
await keyed.page.waitForFunction(() => /context/.test(document.getElementById("model").textContent));
await retype(keyed.page, "max_tokens", "4");
await keyed.page.focus("#text");
await keyed.page.keyboard.press("Enter");
await keyed.page.waitForSelector(".figures");
await check("with the key it answers", (await keyed.page.$$("[role=alert]")).length === 0);

const dying = await serve();
const cut = await open(dying.url, 800, 600, "dark");
await settings(cut.page);
await retype(cut.page, "max_tokens", "");
await cut.page.focus("#text");
await cut.page.keyboard.type("Go on for ever");
await cut.page.keyboard.press("Enter");
await cut.page.waitForFunction(() => document.querySelector(".assistant")?.textContent.length > 20);
dying.child.removeAllListeners("exit");
dying.child.kill("SIGKILL");
await cut.page.waitForSelector("[role=alert]");
await check("a server that goes is told", /connection to the server broke/.test(await cut.page.$eval("[role=alert]", e => e.textContent)));
await cut.page.waitForFunction(() => /no answer from the server/.test(document.getElementById("loadtext").textContent));
await shot(cut.page, "gone-dark");
await check("no script error there", cut.bad.length === 0 && keyed.bad.length === 0, cut.bad.concat(keyed.bad));
await end(0);
