package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// checkCode is one thing that check looks at. Codes never change their meaning, and
// docs/operations.md has a line for each. Its remedy has commands with words that place.fill
// replaces by those of the cluster.
type checkCode struct {
	code, phase, what, remedy string
}

// Phases in which somebody meets a code, which group them in docs/operations.md.
const (
	phaseInstall = "Install"
	phaseLink    = "Link"
	phaseRun     = "Run"
)

// What check looks at, in its order: 0xx files, 1xx one cluster, 2xx two clusters, 3xx a process.
var (
	checkConfig    = checkCode{"ISTH-001", phaseInstall, "the program accepts the configuration file (keys and certificates are not read)", "correct the field that is named (docs/configuration.md). {program} --check, on the machine of the process, reads keys and certificates too"}
	checkValues    = checkCode{"ISTH-002", phaseInstall, "the chart accepts the values", "correct the value that is named; values.yaml of the chart describes it"}
	checkNamespace = checkCode{"ISTH-100", phaseInstall, "the mesh is installed in the namespace that is checked", "name its namespace: --namespace"}
	checkCard      = checkCode{"ISTH-101", phaseInstall, "the cluster has a link card", "isthmus init --network {network} --trust-domain {domain} --apply {at} # network and trust domain as in the chart; with --dir, where init has made a directory before"}
	checkSecrets   = checkCode{"ISTH-102", phaseInstall, "the Secrets of the network's key and of the CA exist", "isthmus init --network {network} --trust-domain {domain} --apply {at} # with --dir of the directory that it made; if that is lost, with --replace"}
	checkRoots     = checkCode{"ISTH-103", phaseInstall, "the roots of the cluster are those of its link card, and valid for at least 30 days", "isthmus init --network {network} --trust-domain {domain} --apply {at} # with --dir of the directory that it made; one that ends soon is replaced by isthmus ca rotate: docs/operations.md, The root of a CA"}
	checkGateways  = checkCode{"ISTH-104", phaseInstall, "the wanted number of gateways is ready", "{kubectl} describe pods --selector app.kubernetes.io/name=isthmus-gateway"}
	checkControl   = checkCode{"ISTH-105", phaseInstall, "the wanted number of controllers is ready", "{kubectl} describe pods --selector app.kubernetes.io/name=isthmus-controller"}
	checkNodes     = checkCode{"ISTH-106", phaseInstall, "the node proxy of each node is ready", "{kubectl} describe pods --selector app.kubernetes.io/name=isthmus-nodeproxy"}
	checkAddress   = checkCode{"ISTH-107", phaseLink, "the Service of the gateways has an address for other networks", "{kubectl} describe service isthmus-gateway # without a load balancer give the address to isthmus link --address"}
	checkNetworks  = checkCode{"ISTH-108", phaseLink, "the file of known networks is valid", "{kubectl} edit configmap isthmus-networks # correct the field that is named"}
	checkForward   = checkCode{"ISTH-109", phaseRun, "a gateway and a controller answer through kubectl port-forward", "fix what is named; port-forward needs create on pods/portforward (docs/rights.md). Or run port-forward yourself and use --admin"}
	checkObjects   = checkCode{"ISTH-110", phaseRun, "the controller reported no problem of an object within 45 minutes", "follow the message of the Event; kubectl describe shows it at the object. A fixed problem is not reported again"}
	checkExports   = checkCode{"ISTH-111", phaseRun, "each ServiceExport is valid and ready, and does not conflict with other clusters", "follow the message of its condition; kubectl describe serviceexport shows it"}
	checkRollouts  = checkCode{"ISTH-112", phaseInstall, "all pods of gateways, controllers and node proxies run the installed version", "{helm} rollback {release} # installs the version before; kubectl rollout status and kubectl describe show the cause"}
	checkRights    = checkCode{"ISTH-113", phaseRun, "the service accounts of gateways and controller have their rights at the API server", "{helm} upgrade {release} {chart} --reuse-values # creates the roles again: docs/rights.md"}
	checkInstalled = checkCode{"ISTH-114", phaseInstall, "network and trust domain of the chart are those of the link card", "{helm} upgrade {release} {chart} --reuse-values --set network=NETWORK,trustDomain=DOMAIN # with those of the card; if the card is wrong, isthmus init with --replace"}
	checkKinds     = checkCode{"ISTH-115", phaseInstall, "the cluster has the kinds ServiceExport and ServiceImport (services of other networks have no address without them)", "{helm} install isthmus-crds {chart}-crds"}
	checkAllowed   = checkCode{"ISTH-116", phaseRun, "your account may read all that check reads", "ask for the missing rights: docs/kubernetes/operator.yaml has all of them, docs/rights.md explains each"}
	checkLeftOut   = checkCode{"ISTH-117", phaseRun, "no pod of the mesh uses the network of its node (hostNetwork pods are not captured)", "run the pod on the pod network; or set the label istio.io/dataplane-mode: none in its template, and it is not listed any more"}
	checkCapture   = checkCode{"ISTH-118", phaseRun, "each node captures its pods (by the status of its node proxy)", "fix what is named: nf_tables in the kernel, or the rights of node proxies (docs/rights.md, On a node); {kubectl} logs POD # of the node proxy"}
	checkSocketLB  = checkCode{"ISTH-119", phaseInstall, "Cilium leaves connections of pods to the rules that capture them (by its ConfigMap cilium-config)", "set socketLB.hostNamespaceOnly=true of the Cilium chart and restart its agents: docs/capture.md, With Cilium"}
	checkName      = checkCode{"ISTH-201", phaseLink, "the two clusters have different network names", "create one of the networks again under another name: isthmus init --network"}
	checkDomain    = checkCode{"ISTH-202", phaseLink, "the two clusters have different trust domains, or one root", "if two administrations own the clusters, create one of them again with isthmus init --trust-domain"}
	checkLinked    = checkCode{"ISTH-203", phaseLink, "the cluster is linked with the other network", "isthmus link --contexts {contexts} --apply"}
	checkKeys      = checkCode{"ISTH-204", phaseLink, "the linked keys are the keys of the other network", "isthmus link --contexts {contexts} --apply # if the network was created again, run isthmus unlink first"}
	checkTrusted   = checkCode{"ISTH-205", phaseLink, "the linked roots are the roots of the other network", "isthmus link --contexts {contexts} --apply"}
	checkDialled   = checkCode{"ISTH-206", phaseLink, "the linked addresses are the present addresses of the other network's gateways", "isthmus link --contexts {contexts} --apply # isthmus link again; if the other Service does not have the address, set address.hosts of the gateways there (gateway.config of the chart)"}
	checkAsked     = checkCode{"ISTH-301", phaseRun, "the process answers at its admin address", "start the process, or correct --admin: it takes the admin.address of a process"}
	checkReady     = checkCode{"ISTH-302", phaseRun, "the process is ready", "each line names what the process waits for: docs/operations.md, Ready"}
	checkClock     = checkCode{"ISTH-303", phaseRun, "the clock of the process is within 5 s of the clock here", "run a time service on both machines: certificates are valid by the clock"}
	checkProblems  = checkCode{"ISTH-304", phaseRun, "the process reports no problems", "isthmus status --admin {admin} # shows when a problem is gone, within 10 s of the fix; docs/operations.md, What status and explain say, has cause and fix of each by its first words"}
	checkHeard     = checkCode{"ISTH-305", phaseRun, "a gateway of each linked network is connected and has proven its key", "check the addresses in both directions: firewalls, load balancers, and whether the other network is linked"}
	checkAttached  = checkCode{"ISTH-306", phaseRun, "the node proxy has a health stream to each gateway of its network (a warning if it has one to some)", "check that the gateways of its network run, and the log of the node proxy for why they reject it"}
	checkReachable = checkCode{"ISTH-307", phaseRun, "no gateway of another network is out (ejected, or not heard by the own gateways)", "fix the error that is named: an address, a firewall, a certificate, or UDP with lines.transport: quic. Without one, docs/operations.md, Gateways and health streams, has the reason in brackets"}
	checkTunnels   = checkCode{"ISTH-308", phaseRun, "tunnels open to the gateways of each other network, at each address (tried now)", "fix what is named: an address, a firewall, a certificate or its trust domain; run isthmus link again if it has changed"}
	checkGuarded   = checkCode{"ISTH-309", phaseRun, "plain text to each pod whose policy denies it comes to its node proxy", "set capture.scope: all (nodeProxy.capture.scope=all of the chart), or block plain text to these pods by a NetworkPolicy: docs/security.md, Policies"}
	checkServed    = checkCode{"ISTH-310", phaseRun, "the services that its pods use are reachable (by the last connections; health of their pods is ISTH-313)", "fix the error that is named; docs/operations.md, What status and explain say, has each. isthmus explain SOURCE DESTINATION shows each candidate. The first connection that succeeds ends this"}
	checkSelects   = checkCode{"ISTH-311", phaseRun, "each policy selects a workload that listens on its ports, and no principal means another network by mistake", "correct the selector or the namespace that is named, or the labels of the pods; the policy has no effect until then. For principals see docs/configuration.md, cluster.local in principals"}
	checkRouted    = checkCode{"ISTH-312", phaseRun, "the addresses of gateways, and the virtual addresses of services where pods are captured, can be used", "fix the address that is named; docs/capture.md, With pods of your own, has what each needs"}
	checkEndpoints = checkCode{"ISTH-313", phaseRun, "each service has a healthy endpoint (by discovery and reported health)", "isthmus status --admin {admin} # names the endpoints that are out, and why: check that these pods run and accept connections"}
	checkPaths     = checkCode{"ISTH-314", phaseRun, "the paths to the gateways of each other network lose few packets and drop no large ones (measured now)", "each line names the fault, and the remedy behind it: docs/lines.md, Find out what is wrong with a path"}
	checkUDP       = checkCode{"ISTH-315", phaseRun, "QUIC connects to the gateways of each other network over UDP, where a tunnel opens over TCP (lines.transport quic or auto; tried now)", "each line names the fault, and the remedy behind it: docs/lines.md, Find out what is wrong with a path"}
)

// checkCodes are all, in their order.
var checkCodes = []checkCode{checkConfig, checkValues, checkNamespace, checkCard, checkSecrets, checkRoots, checkGateways, checkControl, checkNodes, checkAddress, checkNetworks, checkForward, checkObjects, checkExports, checkRollouts, checkRights,
	checkInstalled, checkKinds, checkAllowed, checkLeftOut, checkCapture, checkSocketLB, checkName, checkDomain, checkLinked, checkKeys, checkTrusted, checkDialled, checkAsked, checkReady, checkClock, checkProblems, checkHeard, checkAttached, checkReachable, checkTunnels, checkGuarded, checkServed, checkSelects, checkRouted, checkEndpoints, checkPaths, checkUDP}

// Levels of a checked thing.
const (
	checkWell    = "ok"
	checkWarning = "warning"
	checkBad     = "error"
)

// checked is what came of one check at one place.
type checked struct {
	Code   string `json:"code"`
	Level  string `json:"level"`            // ok, warning or error
	Where  string `json:"where"`            // context or process
	What   string `json:"what"`             // what should be
	Found  string `json:"found,omitempty"`  // what is instead
	Remedy string `json:"remedy,omitempty"` // unless it is ok
	// Seen is what was measured: a tunnel that was opened, how fast, and who has answered.
	Seen []string `json:"seen,omitempty"`
	// Follows is the code of what has to be mended first, at the same place; its remedy is this one's.
	Follows string      `json:"follows,omitempty"`
	after   []checkCode // which Follows may be, the likeliest first
}

// checkup gathers what is checked.
type checkup struct {
	all []checked
	// places are how commands ask what is checked, by Where.
	places map[string]*place
	// path is the network that gateways measure throughput to. Empty: none.
	path string
	// strict has warnings count as wrong.
	strict bool
	// lookup resolves host names.
	lookup func(ctx context.Context, host string) ([]string, error)
}

// add notes a check: well if found is empty. What is wrong may follow from what is wrong under
// one of the codes after.
func (c *checkup) add(code checkCode, where, level, found string, after ...checkCode) {
	c.remedied(code, where, level, found, code.remedy, after...)
}

// remedied is add with another remedy than that of the code.
func (c *checkup) remedied(code checkCode, where, level, found, remedy string, after ...checkCode) {
	x := checked{Code: code.code, Level: level, Where: where, What: code.what, Found: found, Remedy: c.place(where).fill(remedy), after: after}
	if found == "" {
		x.Level, x.Remedy, x.after = checkWell, "", nil
	}
	c.all = append(c.all, x)
}

// follow says of what is wrong from what it follows.
func (c *checkup) follow() {
	at := map[[2]string]*checked{}
	for i := range c.all {
		if x := &c.all[i]; x.Level != checkWell {
			at[[2]string{x.Where, x.Code}] = x
		}
	}
	var first func(x *checked) string
	first = func(x *checked) string {
		for _, cause := range x.after {
			if y := at[[2]string{x.Where, cause.code}]; y != nil && y != x {
				return cmp.Or(first(y), y.Code)
			}
		}
		return ""
	}
	for _, x := range at {
		if x.Follows = first(x); x.Follows != "" {
			x.Remedy = ""
		}
	}
}

// sort puts the checks of each place side by side, by code and what follows from one behind it:
// places, and what is of one code, stay in the order in which they were looked at.
func (c *checkup) sort() {
	c.follow()
	places := map[string]int{}
	for _, x := range c.all {
		if _, known := places[x.Where]; !known {
			places[x.Where] = len(places)
		}
	}
	slices.SortStableFunc(c.all, func(a, b checked) int {
		return cmp.Or(cmp.Compare(places[a.Where], places[b.Where]), cmp.Compare(cmp.Or(a.Follows, a.Code), cmp.Or(b.Follows, b.Code)), cmp.Compare(a.Follows, b.Follows), cmp.Compare(a.Code, b.Code))
	})
}

// wrong is what is, in one line: codes and places, without what changes from look to look.
func (c *checkup) wrong() string {
	var list []string
	for _, x := range c.all {
		if s := fmt.Sprintf("%s (%s)", x.Code, plain(x.Where)); c.isWrong(x) && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return strings.Join(list, ", ")
}

// well reports whether nothing is wrong.
func (c *checkup) well() bool { return !slices.ContainsFunc(c.all, c.isWrong) }

func (c *checkup) isWrong(x checked) bool {
	return x.Level == checkBad || c.strict && x.Level == checkWarning
}

func (c *checkup) count(level string) (n int) {
	for _, x := range c.all {
		if x.Level == level {
			n++
		}
	}
	return n
}
