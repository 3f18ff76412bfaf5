// Package keyfile keeps network keys in files: the directory of an own
// network's secret key, and the file that lists the public keys of the networks
// that one knows. Key files are PEM with PKCS #8 (RFC 8410), as openssl reads
// and writes them.
package keyfile
