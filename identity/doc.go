// Package identity keeps X.509 SVIDs and bundles fresh and turns them into
// TLS configurations: who this process is, and who may be at the other end.
//
// It promises that an [SVID] (certificate, key and the bundle to judge peers
// by) is one immutable value, so that no handshake mixes the old half with the
// new; that a [Manager] renews at half of the remaining lifetime and keeps
// serving a certificate that is still valid while its source fails; and that
// every configuration it gives out is TLS 1.3 only, mutual, without session
// tickets, and checks the identity that the caller expects.
//
// Where SVIDs come from is a [Source]: an in-process development CA
// ([CASource]), files that somebody else rotates ([FileSource]), or a CA that is asked by
// Istio's protocol (package istioclient).
//
// A root vouches for the trust domain that it was given for alone: that of the SVID's
// bundle for the own one, and those of links to other networks ([Manager.Believe]) for
// what the link says.
//
// It does not decide who may talk to whom (the caller passes that in), does
// not dial or listen, and does not check revocation: lifetimes are short
// instead.
package identity
