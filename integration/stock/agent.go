package stock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/protobuf/encoding/protowire"
)

// Pod is one that a stock ztunnel in shared mode serves, in the network namespace at Path.
type Pod struct {
	UID, Name, Namespace, ServiceAccount string
	Path                                 string
}

// SharedEnvironment is that of a ztunnel that serves the pods of a node, of which the [Agent] at socket tells it. What else
// it needs is as [Environment] says.
func SharedEnvironment(node, socket, network, level string) []string {
	env := slices.DeleteFunc(Environment(node, "", network, level), func(e string) bool { return strings.HasPrefix(e, "PROXY_WORKLOAD_INFO=") })
	return append(env, "PROXY_MODE=shared", "INPOD_UDS="+socket, "UNSTABLE_ENABLE_SOCKS5=false") // the last of a name counts
}

// Agent tells a ztunnel of the pods of its node, as the node agent of istio-cni does (Istio's zds.proto, version 1): over a
// unix socket of packets it answers a hello with each pod, whose namespace goes along as a descriptor, and says when
// these are all. Each is acknowledged before the next.
type Agent struct {
	listener *net.UnixListener
	told     chan error
	done     chan struct{}
}

// Serve listens at socket for one ztunnel and tells it of pods, until Close.
func Serve(socket string, pods ...Pod) (*Agent, error) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	a := &Agent{listener: l, told: make(chan error, 1), done: make(chan struct{})}
	go a.serve(pods)
	return a, nil
}

// Told waits until the ztunnel has taken on all pods, or says why not.
func (a *Agent) Told() error { return <-a.told }

// Close ends the connection: the ztunnel keeps its pods and asks again.
func (a *Agent) Close() error {
	close(a.done)
	return a.listener.Close()
}

func (a *Agent) serve(pods []Pod) {
	c, err := a.listener.AcceptUnix()
	if err != nil {
		a.told <- err
		return
	}
	defer c.Close()
	a.told <- tell(c, pods)
	<-a.done
}

// Numbers of fields in zds.proto.
const (
	helloVersion             = 1
	requestAdd, requestSent  = 1, 3
	addUID, addInfo          = 1, 2
	infoName, infoNS, infoSA = 1, 2, 3
	responseAck, ackError    = 1, 1
)

func tell(c *net.UnixConn, pods []Pod) error {
	hello := make([]byte, 1024)
	n, err := c.Read(hello)
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if v, err := field(hello[:n], helloVersion); err != nil || len(v) != 1 || v[0] != 1 {
		return fmt.Errorf("hello %x: not of version 1 (%w)", hello[:n], err)
	}
	for _, p := range pods {
		if err := add(c, p); err != nil {
			return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return ask(c, message(nil, requestSent, nil), nil)
}

func add(c *net.UnixConn, p Pod) error {
	ns, err := os.Open(p.Path)
	if err != nil {
		return err
	}
	defer ns.Close()
	info := message(message(message(nil, infoName, []byte(p.Name)), infoNS, []byte(p.Namespace)), infoSA, []byte(p.ServiceAccount))
	return ask(c, message(nil, requestAdd, message(message(nil, addUID, []byte(p.UID)), addInfo, info)), syscall.UnixRights(int(ns.Fd())))
}

// ask sends a request and waits for its acknowledgement.
func ask(c *net.UnixConn, request, rights []byte) error {
	if _, _, err := c.WriteMsgUnix(request, rights, nil); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, err := c.Read(answer)
	if err != nil {
		return err
	}
	ack, err := field(answer[:n], responseAck)
	if err != nil {
		return err
	}
	if refused, err := field(ack, ackError); err == nil && len(refused) > 0 {
		return errors.New("the ztunnel says: " + string(refused))
	}
	return nil
}

// message appends a field of bytes, text or a message.
func message(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// field is the value of a field, a number as its varint, or an error.
func field(b []byte, number protowire.Number) ([]byte, error) {
	for len(b) > 0 {
		got, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(got, kind, b[n:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		value := b[n : n+size]
		if b = b[n+size:]; got != number {
			continue
		}
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		return value, nil
	}
	return nil, fmt.Errorf("field %d is not there", number)
}
