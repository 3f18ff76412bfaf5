package pending

import "crypto/tls"

// TLS returns cfg for the server handshake on the connection of e. A complete ClientHello
// is its first message.
func (e *Entry) TLS(cfg *tls.Config) *tls.Config {
	inner := cfg.GetConfigForClient
	out := cfg.Clone()
	out.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		e.FirstMessage()
		if inner == nil {
			return nil, nil
		}
		return inner(hello)
	}
	return out
}
