// Loaded before Portkey 1.15.2, which appends to the headers of the upstream's response: under
// Node 20 they are immutable, and every request ends in "Something went wrong". A copy of the
// response, which costs nothing per chunk, has headers that can be changed.
const fetched = globalThis.fetch;
globalThis.fetch = async (...request) => {
  const response = await fetched(...request);
  return new Response(response.body, response);
};
