//go:build linux

package cniinstall

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

// Main runs isthmus-cni install or isthmus-cni uninstall, until it is told to stop, and returns its exit code.
func Main(args []string, out io.Writer) int {
	n := &Node{Executable: "/proc/self/exe", Log: zerolog.New(out).With().Timestamp().Str("component", cniplugin.Type).Logger()}
	run, err := n.parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(out, cniplugin.Type+":", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		n.Log.Error().Err(err).Msg("stopped")
		return 1
	}
	return 0
}

// defaultExcluded are the namespaces of the cluster's own pods and, by the documentation, of the node proxy: with Fail their
// pods would wait for node proxies that wait for them.
const defaultExcluded = "kube-system,isthmus-system"

// namespace is what Kubernetes calls one.
var namespace = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// parse reads the command line, and returns what it asks for.
func (n *Node) parse(args []string, out io.Writer) (func(context.Context) error, error) {
	f := flag.NewFlagSet(cniplugin.Type, flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&n.BinDir, "bin-dir", "/opt/cni/bin", "directory of the node's CNI plugins")
	f.StringVar(&n.ConfDir, "conf-dir", "/etc/cni/net.d", "directory of the node's network configurations")
	f.StringVar(&n.Plugin.Socket, "socket", cniplugin.DefaultSocket, "where the node proxy listens, as the node sees it")
	f.StringVar(&n.Plugin.Timeout, "timeout", cniplugin.DefaultTimeout.String(), "how long a pod waits at most")
	f.BoolVar(&n.Once, "once", false, "do it once and end, with 1 if it could not be done; without it goes on until it is stopped, as what the node's CNI writes anew has to be changed again")
	f.StringVar(&n.Plugin.FailurePolicy, "failure-policy", cniplugin.Ignore, "what becomes of a pod that is not captured by then: Ignore, it starts; Fail, it is tried again")
	f.Usage = func() {
		for _, command := range commands {
			if args[0] == command || !slices.Contains(commands, args[0]) {
				usage(f, command)
			}
		}
	}
	excluded := f.String("exclude-namespaces", defaultExcluded, "namespaces whose pods never wait, with commas between them: those that gateways and node proxies depend on; empty: all wait")
	if len(args) == 0 {
		return nil, errors.New("say what to do: install, uninstall or version; as a plugin it is run by a container runtime (CNI_COMMAND)")
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		fmt.Fprintln(out, "isthmus-cni install keeps the plugin on this node until it is stopped, and isthmus-cni uninstall keeps it off; both with --once do it\nonce and end; isthmus-cni version prints the version; without arguments it is the plugin, which a container runtime runs.")
		f.Usage()
		return nil, flag.ErrHelp
	}
	if !slices.Contains(commands, args[0]) {
		return nil, fmt.Errorf("%q is unknown: use install, uninstall or version", args[0])
	}
	if err := f.Parse(args[1:]); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("argument %q: there are flags alone (--help)", f.Arg(0))
	}
	if *excluded != "" {
		n.Plugin.ExcludeNamespaces = strings.Split(*excluded, ",")
	}
	for i, ns := range n.Plugin.ExcludeNamespaces {
		if !namespace.MatchString(ns) {
			return nil, fmt.Errorf("--exclude-namespaces %.200q: entry %d, %.70q, is the name of no namespace: write names with a comma between them and nothing else, such as kube-system,isthmus-system", *excluded, i+1, ns)
		}
	}
	for _, d := range []struct{ flag, path, like string }{{"bin-dir", n.BinDir, "/opt/cni/bin"}, {"conf-dir", n.ConfDir, "/etc/cni/net.d"}} {
		if !filepath.IsAbs(d.path) {
			return nil, fmt.Errorf("--%s %q is no absolute path: name the directory as it is mounted here, such as %s", d.flag, d.path, d.like)
		}
	}
	if err := n.Plugin.Check(); err != nil {
		return nil, err
	}
	if args[0] == "uninstall" {
		return n.Remove, nil
	}
	if *excluded == "" && n.Plugin.FailurePolicy == cniplugin.Fail {
		n.Log.Warn().Msg("--failure-policy is Fail, and --exclude-namespaces is empty: no pod on the pod network starts without a node proxy, not even what node proxies wait for; " +
			"name the namespaces of those, such as " + defaultExcluded)
	}
	return n.Run, nil
}

// commands are what it does on a node.
var commands = []string{"install", "uninstall"}

// usage prints the flags of a command. uninstall uses two of them, and takes all of them, so that it can take the place of
// install in a command line, as in the chart.
func usage(f *flag.FlagSet, command string) {
	if command == "install" {
		fmt.Fprintf(f.Output(), "Usage: %s install [flags]\n", f.Name())
		f.PrintDefaults()
		return
	}
	only := flag.NewFlagSet(command, flag.ContinueOnError)
	only.SetOutput(f.Output())
	for _, name := range []string{"conf-dir", "once"} {
		used := f.Lookup(name)
		only.Var(used.Value, used.Name, used.Usage)
		only.Lookup(name).DefValue = used.DefValue
	}
	fmt.Fprintf(f.Output(), "Usage: %s %s [flags]; it takes the other flags of install as well, which count for nothing\n", f.Name(), command)
	only.PrintDefaults()
}
