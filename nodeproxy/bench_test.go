package nodeproxy_test

import (
	"io"
	"net"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// BenchmarkConnect is one new connection with one byte each way on a warm path,
// all proxies, client and application in this process.
func BenchmarkConnect(b *testing.B) {
	for _, kind := range []string{"single", "double"} {
		b.Run(kind, func(b *testing.B) {
			m := meshtest.New(b)
			m.Quiet = true
			m.Networks("east", "west")
			m.Service("hello", 80, 8080)
			shop := m.Pod("east", "east-1", "shop-1")
			network, node := "east", "east-2"
			if kind == "double" {
				network, node = "west", "west-1"
				m.Gateway("west", "gw-1")
			}
			pod := m.Pod(network, node, "hello-1", "hello")
			at := shop.Outbound(hello)
			pod.Serve(8080, func(c *net.TCPConn) { io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) })
			m.Start()
			one := []byte{1}
			b.ReportAllocs()
			for b.Loop() {
				c, err := net.Dial("tcp", at.String())
				if err != nil {
					b.Fatal(err)
				}
				c.Write(one)
				if _, err := io.ReadFull(c, one); err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
		})
	}
}
