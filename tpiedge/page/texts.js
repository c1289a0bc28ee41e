// Every English text of the page, by view. What takes a value is a function.

export const texts = {
  shell: {
    name: "tpiedge",
    views: "Views",
    skip: "Skip to the content",
  },
  keys: {
    api: "API key",
    apiWhy: "This server answers only with an API key. It is kept in this tab until you close it.",
    admin: "Administrator's key",
    adminWhy: "This needs the administrator's key. It is kept in this tab until you close it.",
    refused: "The server does not know this key.",
    use: "Use this key",
    cancel: "Cancel",
  },
  errors: {
    unreachable: "The server cannot be reached.",
    noJson: (status) => `The server answered with status ${status}.`,
    keyMissing: "Without the key there is no answer.",
  },
  chat: {
    title: "Chat",
    message: "Message",
    send: "Send",
  },
};
