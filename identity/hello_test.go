package identity

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"io"
	"net"
	"testing"
	"time"
)

// stockHello is a ClientHello of stock ztunnel 62d82653: groups X25519, P-256,
// P-384 and X25519MLKEM768 in this order, and a share for the first.
const stockHello = "16030100cc010000c80303dbfb05573ab08b94e14a8029becdd42f12522a283296946e8a1bedc40ccf911e2054122c0f2a7008b0917b032d0c8aa42d3ac1978cee2ee5aa42bdefbfa25dca150004130213010100007b000b0002010000050005010000000000170000002b0003020304000d001600140503040306030807080608050804060105010401003300260024001d0020c819cfc8c6807b41e4e638c3b28b6af2064f982d659eb20691dc1f7f14f77c04002d00020101000a000a0008001d0017001811ec001000050003026832"

// retryRandom marks a ServerHello as a HelloRetryRequest (RFC 8446 §4.1.3).
const retryRandom = "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"

func TestAStockHelloIsAnsweredInOneRoundTrip(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	client, server := net.Pipe()
	defer client.Close()
	go tls.Server(server, m.ServerTLS(stockID, nil, "h2")).Handshake()
	hello, err := hex.DecodeString(stockHello)
	if err != nil {
		t.Fatal(err)
	}
	client.SetDeadline(time.Now().Add(20 * time.Second))
	client.Write(hello)
	answer := make([]byte, 5+4+2+32) // record and handshake headers, version, random
	if _, err := io.ReadFull(client, answer); err != nil {
		t.Fatal(err)
	}
	if answer[0] != 22 || answer[5] != 2 {
		t.Fatalf("the answer is %x, no ServerHello", answer)
	}
	if random := answer[len(answer)-32:]; bytes.Equal(random, must(hex.DecodeString(retryRandom))) {
		t.Error("the answer is a HelloRetryRequest")
	}
}

func must(b []byte, _ error) []byte { return b }

func TestOurOwnHandshakesArePostQuantum(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	cs, cerr, serr := shake(clientConfig(t, m, stockID), m.ServerTLS(stockID, nil, "h2"))
	if cerr != nil || serr != nil {
		t.Fatalf("client %v, server %v", cerr, serr)
	}
	if cs.CurveID != tls.X25519MLKEM768 || cs.HelloRetryRequest {
		t.Errorf("key exchange %v, retried: %v", cs.CurveID, cs.HelloRetryRequest)
	}
}
