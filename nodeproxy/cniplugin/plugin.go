//go:build linux

package cniplugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
)

// Main runs the plugin as a runtime calls it, by environment and standard input, and returns its exit code. about is
// printed when nobody has called it.
func Main(about string) int {
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: add, Check: check, Del: del, GC: gc, Status: status}, version.All, about)
	if err == nil {
		return 0
	}
	if err := err.Print(); err != nil {
		fmt.Fprintln(os.Stderr, "print the error:", err)
	}
	return 1
}

// again are the pauses until a node proxy that is not there is asked again.
var again = backoff.Backoff{First: 20 * time.Millisecond, Limit: 250 * time.Millisecond}

func add(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	c.warn(os.Stderr)
	if c.network.RawPrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "prevResult is missing", Type+" is no main plugin: put it behind one, in the plugins of a list (.conflist)")
	}
	if err := version.ParsePrevResult(&c.network); err != nil {
		return types.NewError(types.ErrDecodingFailure, "prevResult cannot be read", err.Error())
	}
	pod := podOf(args.Args)
	if pod.uid == "" && c.FailurePolicy == Fail && !c.excludes(pod.namespace) {
		fmt.Fprintf(os.Stderr, "%s: CNI_ARGS has no K8S_POD_UID, so that container %s is taken for no pod of Kubernetes, and starts without waiting, with failurePolicy Fail too\n", Type, args.ContainerID)
	}
	if pod.waits(c) {
		r := cnisocket.Request{Command: cnisocket.Add, Namespace: pod.namespace, Name: pod.name, UID: pod.uid, Container: args.ContainerID, DNS: c.dns.message()}
		if r.Addresses, err = addressesOf(c.network.PrevResult, args.IfName); err != nil {
			err = fmt.Errorf("prevResult has no address for the pod: %w", err)
		} else {
			err = c.announce(r, args.Netns)
		}
		if err != nil && c.FailurePolicy == Fail {
			return types.NewError(types.ErrTryAgainLater, "pod "+pod.namespace+"/"+pod.name+" is not captured by the node proxy, and failurePolicy is Fail", err.Error())
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: pod %s/%s starts before it is captured (failurePolicy Ignore): %v\n", Type, pod.namespace, pod.name, err)
		}
	}
	return types.PrintResult(c.network.PrevResult, c.network.CNIVersion)
}

// announce says to the node proxy what namespace the pod has, and waits for its word; one that is not there, or stops, is
// asked again in time.
func (c *call) announce(r cnisocket.Request, netns string) error {
	namespace, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("CNI_NETNS: %w", err)
	}
	defer namespace.Close()
	deadline := time.Now().Add(c.timeout)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	last := errors.New("the node proxy was not reached in time")
	for try := 1; ; try++ {
		// It is to answer in time to say why.
		r.WaitMS = max(1, int((time.Until(deadline) - min(c.timeout/10, 200*time.Millisecond)).Milliseconds()))
		reply, err := cnisocket.Ask(ctx, c.Socket, r, namespace)
		switch {
		case err != nil && time.Now().Before(deadline): // by the clock: a dial may end by it before ctx has
			last = fmt.Errorf("no node proxy answers at %s: %w", c.Socket, err)
		case err != nil: // the one before says more
		case reply.Verdict == cnisocket.Captured, reply.Verdict == cnisocket.Outside:
			return nil
		case reply.Verdict == cnisocket.Stopping:
			last = errors.New(reply.Reason)
		default:
			return fmt.Errorf("%s: %s", reply.Verdict, reply.Reason)
		}
		if reply.Verdict == cnisocket.Stopping || errors.Is(err, syscall.ECONNRESET) { // another one has the socket by now, or soon
			try = 1
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w", c.timeout, last)
		case <-time.After(again.Next(try)):
		}
	}
}

// askWithin is how long what nobody waits for may take.
const askWithin = time.Second

func (c *call) ask(r cnisocket.Request) (cnisocket.Reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), min(c.timeout, askWithin))
	defer cancel()
	for try := 1; ; try++ {
		reply, err := cnisocket.Ask(ctx, c.Socket, r, nil)
		if try == 3 || !errors.Is(err, syscall.ECONNRESET) { // the node proxy that had the socket has stopped: there may be another
			return reply, err
		}
	}
}

// check has an error if the node proxy says that a pod of the mesh is not captured, and failurePolicy is Fail. A node
// proxy that is not there is no fault of the pod's, which is captured again when it is.
func check(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	c.warn(os.Stderr)
	pod := podOf(args.Args)
	if !pod.waits(c) || c.FailurePolicy != Fail {
		return nil
	}
	reply, err := c.ask(cnisocket.Request{Command: cnisocket.Check, Namespace: pod.namespace, Name: pod.name, UID: pod.uid, Container: args.ContainerID})
	if err == nil && reply.Verdict == cnisocket.Failed {
		return types.NewError(types.ErrTryAgainLater, "pod "+pod.namespace+"/"+pod.name+" is not captured by the node proxy, and failurePolicy is Fail", reply.Reason)
	}
	return nil
}

// del never fails: a node proxy that does not hear it finds out by itself that the sandbox has gone.
func del(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		fmt.Fprintln(os.Stderr, Type+":", err)
		return nil
	}
	if pod := podOf(args.Args); pod.waits(c) {
		c.ask(cnisocket.Request{Command: cnisocket.Delete, Namespace: pod.namespace, Name: pod.name, UID: pod.uid, Container: args.ContainerID})
	}
	return nil
}

// gc has the node proxy let go of sandboxes that the runtime does not know.
func gc(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	r := cnisocket.Request{Command: cnisocket.Retain}
	for _, a := range c.network.ValidAttachments {
		r.Containers = append(r.Containers, a.ContainerID)
	}
	c.ask(r) // it finds out by itself otherwise
	return nil
}

// status is fine whenever the configuration is. A node whose network is not ready gets no pods on the pod network, and the
// node proxy may be one of these.
func status(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err == nil {
		c.warn(os.Stderr)
	}
	return err
}

// addressesOf returns those of the interface that the pod was given, or, if prevResult does not say whose they are, all.
func addressesOf(prev types.Result, name string) (out []netip.Addr, err error) {
	r, err := current.GetResult(prev)
	if err != nil {
		return nil, err
	}
	for i, ip := range r.IPs {
		if at := ip.Interface; at != nil && *at >= 0 && *at < len(r.Interfaces) && (r.Interfaces[*at].Sandbox == "" || r.Interfaces[*at].Name != name) {
			continue
		}
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("ips[%d].address %v is none", i, ip.Address)
		}
		out = append(out, a.Unmap())
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("none of its %d ips is at interface %s: see what the plugins before %s in the list give the pod", len(r.IPs), name, Type)
	}
	return out, nil
}

// pod is what CNI_ARGS says of a pod of Kubernetes.
type pod struct{ namespace, name, uid string }

func podOf(args string) (p pod) {
	for pair := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "K8S_POD_NAMESPACE":
			p.namespace = value
		case "K8S_POD_NAME":
			p.name = value
		case "K8S_POD_UID":
			p.uid = value
		}
	}
	return p
}

// waits reports whether the node proxy may know the pod: not what is none of Kubernetes, what is excluded, or a static pod,
// which discovery knows by another UID than its runtime.
func (p pod) waits(c *call) bool {
	static := len(p.uid) == 32 && !strings.Contains(p.uid, "-")
	return p.uid != "" && !static && !c.excludes(p.namespace)
}

func (c *call) excludes(namespace string) bool {
	for _, n := range c.ExcludeNamespaces {
		if n == namespace {
			return true
		}
	}
	return false
}
