// Package istioclient asks a certificate authority that speaks Istio's protocol (gRPC
// istio.v1.auth.IstioCertificateService) for certificates: istiod, or the controller of
// ours, as ztunnel does.
//
// It promises that the token goes to nobody but a server that proves its name by the roots
// of the file, as they are at that moment, and that token and roots are read anew for each
// request and each connection. It makes no keys, and judges no answers.
package istioclient
