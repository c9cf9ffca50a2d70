// A real OpenID Connect provider for the tests: prints its issuer's address and serves until it is killed.
// Beside the protocol: POST /test/rotate signs with a new key from then on, POST /test/id-token gives an ID token, GET
// /test/fetches counts how often discovery and key set were asked for. Run from the folder that holds node_modules.
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.cwd()}/package.json`);
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')).href);

const keys = [];
const fetches = { discovery: 0, keys: 0 };

function addKey() {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  keys.unshift({ ...privateKey.export({ format: 'jwk' }), kid: randomUUID(), use: 'sig', alg: 'ES256' });
}

function provider(issuer) {
  return new Provider(issuer, {
    jwks: { keys },
    clients: [{
      client_id: 'agent', client_secret: 'of the tests', grant_types: ['client_credentials'], redirect_uris: [],
      response_types: [], id_token_signed_response_alg: 'ES256', token_endpoint_auth_method: 'client_secret_post',
    }],
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: false },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => 'urn:glottis',
        getResourceServerInfo: () => ({
          scope: '', audience: 'glottis', accessTokenTTL: 600, accessTokenFormat: 'jwt', jwt: { sign: { alg: 'ES256' } },
        }),
      },
    },
  });
}

let current;
let issuer;
const server = createServer(async (request, response) => {
  if (request.url === '/.well-known/openid-configuration') fetches.discovery += 1;
  if (request.url === '/jwks') fetches.keys += 1;
  if (!request.url.startsWith('/test/')) return current.callback()(request, response);
  let answer = fetches;
  if (request.url === '/test/rotate') {
    addKey();
    current = provider(issuer);
    answer = { kid: keys[0].kid };
  } else if (request.url === '/test/id-token') {
    const client = await current.Client.find('agent');
    const token = new current.IdToken({ sub: 'agent' }, { client });
    token.scope = 'openid';
    answer = { token: await token.issue({ use: 'idtoken' }) };
  }
  response.setHeader('Content-Type', 'application/json');
  return response.end(JSON.stringify(answer));
});
server.listen(0, '127.0.0.1', () => {
  issuer = `http://127.0.0.1:${server.address().port}`;
  addKey();
  current = provider(issuer);
  process.stdout.write(`issuer ${issuer}\n`);
});
