package main

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newDNSCommand() *cobra.Command {
	var context, format string
	var port uint16
	var k kubectl
	cmd := &cobra.Command{
		Use:   "dns [--context CONTEXT]",
		Short: "Print what CoreDNS needs for names of the mesh",
		Long: `dns prints server blocks for CoreDNS that answer names under mesh.internal and
svc.clusterset.local from the ServiceImports of a cluster, as node proxies answer them in
the pods that they capture. It changes nothing.

It is for pods that node proxies do not answer: those that ask another server than the one in
their resolv.conf, or whose names are not captured. Without it CoreDNS asks the servers of
its node, and maybe the internet, for these names. A name alone opens no way: a virtual address
leads to pods of other networks only from a pod that is captured; others connect by a listener or
by SOCKS, which take names.

No process of the mesh is asked when a name is: what is printed is how it is now. An address stays its service's, so what
changes is which services there are. Print and apply it again when some come or go; what has not changed
is printed alike.

-o corefile (the default) goes into the Corefile, beside the block of the cluster: kubectl --namespace kube-system
edit configmap coredns. -o configmap is the ConfigMap coredns-custom, which AKS, k3s and RKE2 include.
If you have one already, add its key to that instead of applying it.`,
		Example: "  isthmus dns --context east\n  isthmus dns --context east -o configmap | kubectl --context east apply -f -",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "corefile" && format != "configmap" {
				return exit(exitUsage, fmt.Errorf("--output: %q is not a format: use corefile or configmap", format))
			}
			k := k.of(context)
			var list importList
			there, err := k.list(cmd.Context(), &list, "serviceimports.multicluster.x-k8s.io")
			if err != nil {
				return err
			}
			if !there {
				return exit(exitStart, fmt.Errorf("%s has no kind ServiceImport, so services of other networks have no address there: install the chart isthmus-crds", k.where()))
			}
			text, left := corefile(list, port)
			for _, why := range left {
				fmt.Fprintln(cmd.ErrOrStderr(), "isthmus:", why)
			}
			return exit(exitStart, writeDNS(cmd.OutOrStdout(), text, format))
		},
	}
	kubectlFlags(cmd, &k)
	cmd.Flags().StringVar(&context, "context", "", "cluster, as a context of the kubeconfig; the current one when left out")
	cmd.Flags().StringVarP(&format, "output", "o", "corefile", "output format: corefile or configmap")
	cmd.Flags().Uint16Var(&port, "port", 53, "port that CoreDNS listens on")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"corefile", "configmap"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// importList is what is read of ServiceImports.
type importList struct {
	Items []serviceImport
}

type serviceImport struct {
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec struct {
		Type  string
		IPs   []string
		Ports []struct {
			Name, Protocol string
			Port           uint16
		}
	}
}

// dnsZones are those of package nodeproxy/names, and dnsTTL is how long answers hold, in seconds, as CoreDNS has it for
// services of the cluster.
var dnsZones = []string{"mesh.internal", "svc.clusterset.local"}

const dnsTTL = 30

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// dnsName is a service as its names have it.
type dnsName struct {
	full  string // <name>.<namespace>
	ips   []netip.Addr
	ports []dnsPort
}

type dnsPort struct {
	name   string
	number uint16
}

// corefile returns server blocks for what list has, and why something of it is left out: whoever may
// write ServiceImports writes no configuration of CoreDNS, and no address beside those that the controller gives.
func corefile(list importList, port uint16) (text string, left []string) {
	var names []dnsName
	for _, i := range list.Items {
		n := dnsName{full: i.Metadata.Name + "." + i.Metadata.Namespace}
		if i.Metadata.Labels["app.kubernetes.io/managed-by"] != "isthmus-controller" {
			left = append(left, fmt.Sprintf("ServiceImport %s/%s is left out: isthmus-controller has not made it, so its address is somebody else's", i.Metadata.Namespace, i.Metadata.Name))
			continue
		}
		if !dnsLabel.MatchString(i.Metadata.Name) || !dnsLabel.MatchString(i.Metadata.Namespace) {
			left = append(left, fmt.Sprintf("ServiceImport %s/%s is left out: its name is no DNS label", i.Metadata.Namespace, i.Metadata.Name))
			continue
		}
		for _, text := range i.Spec.IPs {
			if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && i.Spec.Type != "Headless" {
				n.ips = append(n.ips, a.Unmap())
			}
		}
		for _, p := range i.Spec.Ports {
			if dnsLabel.MatchString(p.Name) && (p.Protocol == "" || p.Protocol == "TCP") && len(n.ips) > 0 {
				n.ports = append(n.ports, dnsPort{p.Name, p.Port})
			}
		}
		names = append(names, n)
	}
	if len(names) == 0 {
		left = append(left, "warning: "+noNames)
	}
	slices.SortFunc(names, func(a, b dnsName) int { return strings.Compare(a.full, b.full) })
	var b strings.Builder
	for _, zone := range dnsZones {
		writeZone(&b, zone, port, names)
	}
	return b.String(), left
}

// noNames is said of a cluster that has nothing to answer with.
const noNames = "isthmus-controller has made no ServiceImport in this cluster, so what is printed answers NXDOMAIN to every name under mesh.internal and svc.clusterset.local. " +
	"Is it the right --context? Services are exported by the label istio.io/global=true, networks are linked by isthmus link, and isthmus check says whether the controller runs. Print it again when kubectl get serviceimports --all-namespaces lists some"

// writeZone writes a server block. Its templates are tried in turn: addresses and ports, then names that
// have nothing else, and the rest does not exist.
func writeZone(w io.Writer, zone string, port uint16, names []dnsName) {
	dots := func(s string) string { return strings.ReplaceAll(s, ".", "[.]") }
	end := dots("." + zone + ".")
	soa := fmt.Sprintf("authority \"%s. %d IN SOA ns.%[1]s. hostmaster.%[1]s. 1 60 10 600 %[2]d\"", zone, dnsTTL)
	fmt.Fprintf(w, "%s:%d {\n    errors\n", zone, port)
	exist := []string{"^" + dots(zone+".") + "$"}
	for _, n := range names {
		for _, ip := range n.ips {
			fmt.Fprintf(w, "    template IN %s {\n        match ^%s%s$\n        answer \"{{ .Name }} %d IN %[1]s %[5]s\"\n        fallthrough\n    }\n", family(ip), dots(n.full), end, dnsTTL, ip)
		}
		exist = append(exist, "^"+dots(n.full)+end+"$")
		for _, p := range n.ports {
			name := "_" + p.name + "._tcp." + n.full
			fmt.Fprintf(w, "    template IN SRV {\n        match ^%s%s$\n        answer \"{{ .Name }} %d IN SRV 0 100 %d %s.%s.\"\n", dots(name), end, dnsTTL, p.number, n.full, zone)
			for _, ip := range n.ips {
				fmt.Fprintf(w, "        additional \"%s.%s. %d IN %s %s\"\n", n.full, zone, dnsTTL, family(ip), ip)
			}
			fmt.Fprint(w, "        fallthrough\n    }\n")
			exist = append(exist, "^"+dots(name)+end+"$", "^"+dots("_tcp."+n.full)+end+"$")
		}
	}
	exist = append(exist, "^[^.]+"+end+"$") // a namespace: there may be names below
	fmt.Fprintf(w, "    template IN ANY {\n        match %s\n        rcode NOERROR\n        %s\n        fallthrough\n    }\n", strings.Join(uniq(exist), " "), soa)
	fmt.Fprintf(w, "    template IN ANY {\n        rcode NXDOMAIN\n        %s\n    }\n}\n", soa)
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "A"
	}
	return "AAAA"
}

// uniq returns list without what is twice in it, in order.
func uniq(list []string) (out []string) {
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// writeDNS writes the Corefile's text as it is, or in a ConfigMap.
func writeDNS(w io.Writer, text, format string) error {
	var b bytes.Buffer
	if format == "configmap" {
		b.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: coredns-custom\n  namespace: kube-system\ndata:\n  isthmus.server: |\n")
	}
	for line := range strings.Lines(text) {
		if format == "configmap" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	_, err := b.WriteTo(w)
	return err
}
