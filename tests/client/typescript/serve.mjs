// The official TypeScript server, in both eras: /modern (2026-07-28) and /legacy (2025-11-25, with sessions).
//
// It prints its port. A line of its standard input changes something: a URI, or "tools". Then that line is printed.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { Readable } from 'node:stream';

import { McpServer, WebStandardStreamableHTTPServerTransport, createMcpHandler } from '@modelcontextprotocol/server';

const URIS = ['note://1', 'note://2'];
const versions = new Map(URIS.map((uri) => [uri, 0]));
const tools = ['first'];
const sessions = new Map();

function makeServer() {
    const server = new McpServer(
        { name: 'typescript', version: '1' },
        { capabilities: { tools: { listChanged: true }, resources: { listChanged: true, subscribe: true } } },
    );
    for (const uri of URIS) {
        server.registerResource(uri, uri, {}, async () => ({ contents: [{ uri, text: String(versions.get(uri)) }] }));
    }
    for (const name of tools) {
        server.registerTool(name, {}, async () => ({ content: [] }));
    }
    return server;
}

function makeSession() {
    const server = makeServer();
    const subscribed = new Set();
    server.server.setRequestHandler('resources/subscribe', async ({ params }) => {
        if (!versions.has(params.uri)) {
            throw new Error(`No resource ${params.uri}`);
        }
        subscribed.add(params.uri);
        return {};
    });
    server.server.setRequestHandler('resources/unsubscribe', async ({ params }) => {
        subscribed.delete(params.uri);
        return {};
    });
    const transport = new WebStandardStreamableHTTPServerTransport({
        sessionIdGenerator: () => randomUUID(),
        onsessioninitialized: (id) => sessions.set(id, { server, transport, subscribed }),
        onsessionclosed: (id) => sessions.delete(id),
    });
    return { server, transport };
}

const modern = createMcpHandler(makeServer, { legacy: 'reject' });

async function answer(request) {
    if (new URL(request.url).pathname === '/modern') {
        return modern.fetch(request);
    }
    const id = request.headers.get('mcp-session-id');
    if (id !== null) {
        const session = sessions.get(id);
        return session ? session.transport.handleRequest(request) : new Response('No such session', { status: 404 });
    }
    const { server, transport } = makeSession();
    await server.connect(transport);
    return transport.handleRequest(request);
}

const http = createServer(async (incoming, outgoing) => {
    const leaving = new AbortController();
    outgoing.on('close', () => leaving.abort());
    const hasBody = incoming.method === 'POST';
    const request = new Request(`http://127.0.0.1${incoming.url}`, {
        method: incoming.method,
        headers: incoming.headers,
        body: hasBody ? Readable.toWeb(incoming) : undefined,
        duplex: 'half',
        signal: leaving.signal,
    });
    try {
        const response = await answer(request);
        outgoing.writeHead(response.status, Object.fromEntries(response.headers));
        outgoing.flushHeaders();
        if (response.body) {
            Readable.fromWeb(response.body).on('error', () => outgoing.destroy()).pipe(outgoing);
        } else {
            outgoing.end();
        }
    } catch (error) {
        console.error(error);
        outgoing.destroy();
    }
});

createInterface({ input: process.stdin })
    .on('line', async (line) => {
        if (line === 'tools') {
            modern.notify.toolsChanged();
            await Promise.all([...sessions.values()].map(({ server }) => server.sendToolListChanged()));
        } else {
            versions.set(line, versions.get(line) + 1);
            modern.notify.resourceUpdated(line);
            for (const { server, subscribed } of sessions.values()) {
                if (subscribed.has(line)) {
                    await server.server.sendResourceUpdated({ uri: line });
                }
            }
        }
        console.log(line);
    })
    .on('close', () => process.exit(0));

http.listen(0, '127.0.0.1', () => console.log(http.address().port));
