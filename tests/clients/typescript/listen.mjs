// The official TypeScript client, listening: one line of JSON for each thing that it sees.
//
// MCP_URL, MCP_TOKEN and MCP_RESOURCE in the environment say where, as whom, and to which resource (besides the list of
// tools). It ends when the server ends the subscription, or, once its standard input is closed, by its own doing.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const { MCP_URL, MCP_TOKEN, MCP_RESOURCE } = process.env;

function say(event, details = {}) {
    process.stdout.write(`${JSON.stringify({ event, ...details })}\n`);
}

async function read(client, uri) {
    const { contents } = await client.readResource({ uri });
    return { uri, text: contents[0].text };
}

async function toolNames(client) {
    return (await client.listTools()).tools.map((tool) => tool.name);
}

const client = new Client(
    { name: 'mcp-channels-tests', version: '1' },
    { versionNegotiation: { mode: { pin: '2026-07-28' } } },
);
const transport = new StreamableHTTPClientTransport(new URL(MCP_URL), {
    authProvider: { token: async () => MCP_TOKEN },
});

client.onerror = (error) => say('error', { message: String(error) });
client.setNotificationHandler('notifications/resources/updated', async ({ method, params }) => {
    say('notification', { method, params });
    say('content', await read(client, params.uri));
});
client.setNotificationHandler('notifications/tools/list_changed', async ({ method, params }) => {
    say('notification', { method, params });
    say('tools', { names: await toolNames(client) });
});

await client.connect(transport);
say('connected', { version: client.getNegotiatedProtocolVersion(), server: client.getServerVersion() });

// The client keeps to itself that the server cancelled a subscription, and why.
const { onmessage } = transport;
transport.onmessage = (message, extra) => {
    if (message.method === 'notifications/cancelled') {
        say('cancelled', { params: message.params });
        // The client then has no request for the result that follows, and would report it as an error.
        client.onerror = undefined;
    }
    onmessage(message, extra);
};

say('listed', {
    resources: (await client.listResources()).resources.map((resource) => resource.uri),
    templates: (await client.listResourceTemplates()).resourceTemplates.map((template) => template.uriTemplate),
    prompts: (await client.listPrompts()).prompts.map((prompt) => prompt.name),
    tools: await toolNames(client),
});
say('content', await read(client, MCP_RESOURCE));

const subscription = await client.listen({ resourceSubscriptions: [MCP_RESOURCE], toolsListChanged: true });
say('acknowledged', { honoured: subscription.honoredFilter });

let closing;
process.stdin.on('end', () => { closing = subscription.close(); }).resume();
say('ended', { how: await subscription.closed });
await closing;
process.stdin.destroy();
await client.close();
