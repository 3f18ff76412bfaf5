// Package boundtoken says which pod holds a service-account token that is bound to it, and
// on which node that pod is: the proof of node of a node proxy to its gateways, and of who
// asks the CA for certificates.
//
// It promises that a token counts only if the API server, or a key of its that was fetched
// while it answered, vouches for it; if it is for our audience and for an account that was
// named; if its pod lives, with that account, on the node that the token names; and never
// beyond its expiry. What it does not do: say what the holder may.
package boundtoken
