package pending

import "crypto/tls"

// TLS returns cfg for a server handshake on e's connection, which has spoken when its
// ClientHello is complete.
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
