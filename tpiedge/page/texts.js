// Every English text of the page, by view. What takes a value is a function.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const dates = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const seconds = (s) => (s < 10 ? `${s.toFixed(1)} s` : `${whole.format(s)} s`);
const UNITS = ["B", "kB", "MB", "GB", "TB"];
const bytes = (count) => {
  const unit = Math.min(UNITS.length - 1, count < 1 ? 0 : Math.floor(Math.log10(count) / 3));
  const value = count / 1000 ** unit;
  return `${value >= 100 || unit === 0 ? whole.format(value) : value.toFixed(1)} ${UNITS[unit]}`;
};
const brief = (s) => (s < 1 ? `${(1000 * s).toFixed(s < 0.01 ? 2 : 0)} ms` : seconds(s));
const timeLeft = (s) => (s === null ? "" : `, ${whole.format(s)} s left`);
const when = (at_s) => {
  const at = new Date(at_s * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${dates.format(at)}, ${time}`;
};
const longer = (ratio) => {
  if (ratio >= 2) return `${ratio.toFixed(1)} times as long`;
  const percent = Math.round(100 * (ratio - 1));
  return percent === 0 ? "as long as now" : `${Math.abs(percent)} % ${percent > 0 ? "longer" : "shorter"}`;
};
// The planner knows no more than its model of the machines: what it predicts counts beside what it predicts of the plan
// of now, and is scaled by what is measured of that.
const predicted = ({ now_s, then_s }, measured_s) => {
  if (!now_s) return `about ${brief(then_s)} (predicted)`;
  const ratio = then_s / now_s;
  const said = `about ${longer(ratio)} (predicted)`;
  if (measured_s <= 0) return said;
  return `${said}: ${brief(ratio * measured_s)} instead of ${brief(measured_s)}`;
};
const eventWords = {
  joined: (machine) => `${machine} joined`,
  left: (machine) => `${machine} left`,
  lost: (machine) => `${machine} was lost`,
  drained: (machine) => `${machine} was drained`,
  undrained: (machine) => `${machine} is back in use`,
  cleared: (machine) => `${machine} is retried`,
  revoked: (machine) => `${machine} was revoked`,
  planned: () => "new plan",
  serving: () => "serving",
  recovered: () => "answers resumed",
  interrupted: () => "answers paused",
  "plan failed": () => "new plan failed",
  "no plan": () => "no plan",
};
// The server's own words are for programs where these are not.
const codeWords = {
  context_length_exceeded: "this conversation is too long for the model.",
  queue_full: "too many questions wait already. Try again in a moment.",
  model_not_found: "the server has another model now.",
};
const count = (number, one, many) => `${whole.format(number)} ${number === 1 ? one : many}`;
const tokens = (number) => count(number, "token", "tokens");

export const texts = {
  shell: {
    name: "tpiedge",
    views: "Views",
    skip: "Skip to content",
  },
  keys: {
    api: "API key",
    apiWhy: "Whoever runs this server makes one with “tpiedge keys add NAME”. It is kept until this tab is closed.",
    admin: "Admin key",
    adminWhy: "To see it, run “tpiedge nodes key” on the master. It is kept until this tab is closed.",
    refused: "This key is not valid.",
    apiRenewed: "The previous key is no longer valid.",
    adminRenewed: "The master was restarted: it has a new key.",
    use: "Use this key",
    cancel: "Cancel",
  },
  errors: {
    unreachable: "Cannot reach the server.",
    unreachableNow: "Cannot reach the server. Retrying …",
    noJson: (status) => `The server answered with status ${status}.`,
    noEvent: "The server sent an invalid event.",
    of: ({ code, message }) => codeWords[code] ?? String(message),
    keyMissing: {
      api: "This server needs an API key: ask whoever runs it.",
      admin: "This needs the admin key.",
    },
    broken: "The connection was lost before the answer's end.",
    gone: "The server no longer has the rest of this answer.",
  },
  chat: {
    title: "Chat",
    conversations: "Conversations",
    conversation: "Conversation",
    open: "Show conversations",
    close: "Hide conversations",
    add: "New chat",
    none: "No conversations yet. They stay in this browser.",
    find: "Search conversations",
    notFound: "No matches.",
    rename: (title) => `Rename “${title}”`,
    newName: "New name",
    remove: (title) => `Delete “${title}”`,
    removeAsk: "Delete this conversation?",
    removeWhy: (title) => `“${title}” will be deleted for good.`,
    removeDo: "Delete",
    removeAllDo: "Delete all",
    removeAllAsk: (number) => `Delete ${count(number, "conversation", "conversations")}?`,
    removeAllWhy: "They cannot be brought back. “Export” saves conversations in a file first.",
    exportDo: "Export",
    exportName: (at) => `tpiedge-conversations-${at.toISOString().slice(0, 10)}.json`,
    importDo: "Import",
    importFile: "File of conversations",
    imported: ({ added, all }) => `${count(added, "conversation", "conversations")} imported` +
      (added < all ? `; ${whole.format(all - added)} already here.` : "."),
    noArchive: "This file has no conversations of tpiedge: choose one that “Export” made.",
    newerArchive: "A newer tpiedge made this file: upgrade the master.",
    wrongArchive: (number) => `Nothing imported: conversation ${whole.format(number)} of this file is damaged.`,
    cancel: "Cancel",
    notKept: "Not saved: this browser gives the page no more storage. Delete conversations.",
    keepsNothing: "This browser stores nothing: conversations are lost when you close this tab.",

    welcome: "What would you like to know?",
    welcomeWhy: (model) => (model ? `${model}, on your own machines.` : "On your own machines."),
    message: "Message",
    hint: "Message …",
    send: "Send",
    stop: "Stop",
    toEnd: "To the end",

    you: "You",
    copy: "Copy",
    copyCode: "Copy",
    copied: "Copied",
    notCopied: "Not copied",
    edit: "Edit",
    editing: "Edit message",
    again: "Try again",
    typeKey: "Enter key",
    regenerate: "Regenerate",
    previous: "Previous version",
    next: "Next version",
    version: (number, count) => `${number} of ${count}`,
    code: "Code",
    table: "Table",
    formula: "Formula",
    thought: "Thoughts",
    thinking: "Thinking …",

    isAnswering: "Answering",
    model: "Model",
    notOffered: (name, other) => `${name} is not offered any more: ${other} answers.`,
    unready: (why) => `Not ready: ${why}.`,
    asleep: "The model is loaded with your question.",
    sent: "Waiting for the server …",
    opened: (s) => (s < 1 ? "Reading the prompt …" : `Reading the prompt … ${whole.format(s)} s`),
    reading: ({ done, of, left_s }) =>
      `Reading the prompt … ${whole.format(done)} of ${tokens(of)}${timeLeft(left_s)}`,
    pauses: ({ note, tokens: begun }) => /^waiting for | is served first$/.test(note)
      ? `${note.replace(/^w(?=aiting for )/, "W")}. ${begun ? "The answer goes on then." : "Your question is kept."}`
      : `Paused: ${note}`,
    reconnecting: "connection lost, reconnecting",
    reaching: "cannot reach the server, retrying",
    live: (count, rate) => (rate ? `${tokens(count)} · ${rate.toFixed(1)} tokens/s` : tokens(count)),
    answered: (text) => `Answer: ${text}`,
    stopped: "Stopped.",
    interrupted: "Interrupted when the page was closed.",
    elsewhere: "In progress in another tab, unless you closed it.",
    unread: (why) => `This answer is incomplete: ${why}`,
    goOn: "Continue",
    failed: (why) => `No answer: ${why}`,
    readyNow: (why) => `No answer then: ${why.replace(/\.$/, "")}. The model is ready now.`,
    brokeOff: (why) => `Answer cut off: ${why}`,
    tooLong: (fit) =>
      `${fit ? `It has room for ${tokens(fit)}, the answer included. ` : ""}Shorten the message or start a new chat.`,
    cut: "The answer reached its length limit.",
    full: "The model's context is full. Edit an earlier message or start a new chat.",

    count: tokens,
    rate: (rate) => `${rate.toFixed(1)} tokens/s`,
    perStep: (count) => `${exact.format(count)} ${count === 1 ? "token" : "tokens"} per step`,
    first: (s) => `first token after ${seconds(s)}`,
    prompt: (count, cached) => `prompt ${tokens(count)}${cached ? `, ${whole.format(cached)} cached` : ""}`,
    paused: (s) => `paused for ${seconds(s)}`,

    settings: "Settings",
    settingsOwn: "These settings differ from your defaults.",
    settingsWhy: "For this chat, from the next answer on. Empty fields use the model's defaults.",
    makeUsual: "Use as defaults for new chats",
    system: "System prompt",
    unset: { temperature: "model default", top_p: "model default", max_tokens: "2048", seed: "random" },
    temperature: "Temperature",
    temperatureWhy: "0: always the likeliest token. Higher: more random.",
    top_p: "Top P",
    top_pWhy: "Choose among the likeliest tokens whose probabilities add up to this, 0 to 1.",
    max_tokens: "Max tokens",
    max_tokensWhy: "The longest answer, in tokens; shorter if the context is full.",
    seed: "Seed",
    seedWhy: "The same seed gives the same answer.",
    done: "Done",
  },
  cluster: {
    title: "Cluster",
    locked: "This view needs the admin key.",
    linkUsed: "This link does not work any more: it works once, within an hour, and not after another one was made.",
    lockedHow: "On the master’s own computer, open the link that this prints:",
    lockedType: "tpiedge nodes link",
    lockedElse: "Elsewhere, enter the key that this prints on the master:",
    lockedKey: "tpiedge nodes key",
    unlock: "Enter key",
    looking: "Loading …",
    unseen: (at_s, why) => `Last update: ${when(at_s)}. ${why}`,
    again: "Try again",
    keyWanted: "The admin key has changed.",
    unreachable: "unreachable",
    notSeen: "unknown",
    dismiss: "Close",

    ready: "ready",
    notReady: "not ready",
    asleep: "asleep",
    nextModel: (name) => `next: ${name}`,
    collective: "All-reduce",
    collectiveOf: ({ token, chunk }) => `${token}${chunk && chunk !== token ? `; prompts: ${chunk}` : ""}`,
    rate: "Tokens per second",
    running: "Running",
    queued: "Queued",
    guesses: "Drafts accepted",
    kv: "KV cache used",
    perSecond: (rate) => (rate === null ? "–" : rate.toFixed(1)),
    percent: (part) => `${whole.format(100 * part)} %`,
    partOf: (part, all) => (all > 0 ? `${whole.format((100 * part) / all)} %` : "–"),
    whole: (count) => whole.format(count),
    unknown: "–",

    machines: "Machines",
    rank: "Rank",
    id: "Id",
    details: "Details",
    states: {
      serving: "serving",
      loading: "loading",
      spare: "spare",
      "left out": "left out",
      draining: "draining",
      drained: "drained",
      waiting: "waiting",
      lost: "offline",
    },
    drained: "Safe to switch off. “Undrain” or a restart of its worker brings it back.",
    silent: (s) => `Silent for ${whole.format(s)} s.`,
    fetching: ({ done_bytes, total_bytes, bytes_per_s }) =>
      `Fetching weights: ${bytes(done_bytes)} of ${bytes(total_bytes)}, ${bytes(bytes_per_s)}/s`,
    share: { work: "Share of the work", heads: "Attention heads", ffn: "FFN" },
    bytes,
    seconds: brief,
    memoryOf: (planned, budget) => `Memory: ${bytes(planned)} of ${bytes(budget)}`,
    memoryPlanned: (planned) => `Memory: ${bytes(planned)}`,
    memory: {
      pinned: "weights",
      window: "streaming window",
      kv: "KV cache",
      kv_room: "KV, unused",
      program: "program",
      free: "free",
    },
    stepNone: "Idle",
    stepOf: (s) => `Step time: ${brief(s)}`,
    step: { compute: "compute", wait: "wait", network: "network", disk: "disk" },
    timeline: "Step timeline",
    timelineOf: ({ step, at, took_s, tokens: count }) =>
      `Step ${whole.format(step)}, ${tokens(count)}, at ${when(at)}: ${brief(took_s)}`,
    ms: (ms) => `${exact.format(ms)} ms`,
    machine: "Machine",
    link: "Link to master",
    linkOf: ({ round_trip_s, bytes_per_s }) => `${brief(round_trip_s)}, ${bytes(bytes_per_s)}/s`,
    links: "Links to workers",
    linksOf: (links) =>
      links.map(({ name, host, round_trip_s }) => `${host || name} ${brief(round_trip_s)}`).join(", "),
    disk: "On disk",
    diskOf: ({ held_bytes, spare_ranges, read_bytes_per_s }) =>
      bytes(held_bytes) +
      (spare_ranges === "complete" ? ", failover-ready" : "") +
      (read_bytes_per_s ? `; reads ${bytes(read_bytes_per_s)}/s` : ""),
    kvPages: "KV pages",
    kvPagesOf: ({ kv_read_bytes_per_s, kv_written_bytes_per_s }) =>
      `${bytes(kv_read_bytes_per_s)}/s from disk, ${bytes(kv_written_bytes_per_s)}/s to disk`,
    notPrefetched: (why) => `Not ready for failover: ${why}`,
    speed: "Speed",
    speedOf: ({ speed_bytes_per_s, threads }) =>
      `${bytes(speed_bytes_per_s)}/s of weights, ${threads} ${threads === 1 ? "thread" : "threads"}`,
    drain: "Drain",
    undrain: "Undrain",
    clear: "Retry now",
    add: {
      title: "Add a machine",
      why: "Paste these lines into a terminal of the new machine. They install tpiedge there and start a worker; " +
        "the token in them lets one machine in, within a day.",
      notes: (first, last) => [
        "The machine needs Linux, 4 GB of memory, and Python 3.11 or newer with venv (Debian, Ubuntu: " +
          "apt install python3-venv).",
        `It must reach this computer's TCP ports ${first} to ${last}.`,
        `A firewall here has to let them in: sudo ufw allow ${first}:${last}/tcp`,
      ],
      copy: "Copy",
      copied: "Copied",
      notCopied: "Not copied",
      close: "Close",
    },
    whatIfLess: "If removed?",
    whatIfMore: "What if one more machine joined?",
    less: (name, forecast, measured_s) => {
      const { then_s, takes_part, why } = forecast;
      if (then_s === null) return `Without ${name} there is no plan: ${why}`;
      if (!takes_part) return `The best plan leaves ${name} out anyway.`;
      return `Without ${name} a step would take ${predicted(forecast, measured_s)}.`;
    },
    more: (forecast, measured_s) => {
      const { then_s, takes_part, why } = forecast;
      if (then_s === null) return `There is still no plan: ${why}`;
      if (!takes_part) return "It would be a spare: answers would be no faster.";
      return `With it a step would take ${predicted(forecast, measured_s)}.`;
    },
    revoke: "Revoke",
    wordsTitle: "Glossary",
    wordsOf: [
      ["step", "One pass through the model on all machines. It adds one token or more to each running answer."],
      ["rank", "A machine's number in the plan. Rank 0 is the master, which decides what each step computes."],
      ["heads", "The attention heads, the first half of each layer. Each machine has some of them."],
      ["FFN", "The feed-forward network: the second half of each layer. Each machine has a slice."],
      ["KV cache", "Keys and values of past tokens, kept so that no token is computed twice."],
      ["all-reduce", "Twice a layer the machines add up their partial results. Star: all go to the master and back; " +
        "mesh: from each to each; two-shot: each machine adds up one slice and sends it to all."],
      ["drafts accepted", "Tokens are drafted ahead and checked together. Each accepted one saves a step."],
      ["spare", "A machine without a part, because answers would be slower with it. It takes over when one is lost."],
      ["failover-ready", "The disk holds the weights that this machine needs when another one is lost."],
      ["GB/s of weights", "How fast a machine reads its weights while it computes: the more, the faster."],
    ],

    waiting: (count) => (count === 1 ? "A machine waits to join" : `${count} machines wait to join`),
    from: (address) => `at ${address}`,
    code: "Code on its screen",
    codeHint: "XXXX-XXXX",
    codeWhy: "Type it as the machine shows it: it proves which machine you approve.",
    approve: "Approve",

    requests: "Requests",
    noRequests: "No requests.",
    columns: ["From", "State", "Age", "Prompt", "Answer", "Tokens/s", "Request"],
    actions: "Actions",
    sender: (sender) => {
      if (sender === null) return "–";
      if (sender.kind === "former key") return "removed key";
      return sender.name || "unnamed key";
    },
    senderOf: (sender) => `from ${sender}`,
    requestStates: { queued: "queued", reading: "reading", answering: "answering", paused: "paused" },
    pauses: ({ why, paused_s }) => `for ${whole.format(paused_s)} s: ${why}`,
    age: (s) => (s < 60 ? `${s} s` : `${Math.floor(s / 60)} min ${s % 60} s`),
    readOf: ({ done_tokens, of_tokens, left_s }) =>
      `${whole.format(done_tokens)} of ${whole.format(of_tokens)}${timeLeft(left_s)}`,
    tokensOf: ({ tokens: count, max_tokens }) => `${whole.format(count)} of ${whole.format(max_tokens)}`,
    cancelDo: "End",
    cancelOf: (id) => `End ${id}`,

    events: "Events",
    noEvents: "No events yet.",
    when,
    event: ({ kind, machine, detail }) => {
      const said = eventWords[kind]?.(machine) ?? `${machine} ${kind}`.trim();
      return detail ? `${said}: ${detail}` : said;
    },

    keep: "Cancel",
    ask: {
      drain: (name) => ({
        title: `Drain ${name}?`,
        why: "The others take over its part; answers pause meanwhile. Then it is safe to switch off.",
        go: "Drain",
      }),
      revoke: (name) => ({
        title: `Revoke ${name}?`,
        why: "It is removed at once. To come back it needs a new token or code.",
        go: "Revoke",
      }),
      cancel: (from, id) => ({
        title: `End this request${from}?`,
        why: `Its client is told that an administrator ended it. Request: ${id}`,
        go: "End it",
      }),
    },
  },
};
