// Package istioca serves Istio's certificate protocol (gRPC
// istio.v1.auth.IstioCertificateService) from a CA of ours, so that an
// unmodified ztunnel has SVIDs of our mesh.
//
// It promises that a certificate carries exactly the one SPIFFE ID of a request
// that the key has signed, within the CA's trust domain, and lives no longer
// than the server allows. A refusal is InvalidArgument (the request is wrong) or
// PermissionDenied (nobody gets this identity here), and says why.
//
// Who asks is for an [Authorizer] to say, and what they may be. Without one it does not
// ask: tokens are not looked at, and whoever reaches the socket can be anybody in the
// mesh, just as whoever can read the CA's key. That is why `isthmus ca serve` listens on
// loopback only.
package istioca
