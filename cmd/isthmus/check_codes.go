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
	checkConfig    = checkCode{"ISTH-001", phaseInstall, "the program takes the configuration", "correct the field that is named (docs/configuration.md)"}
	checkValues    = checkCode{"ISTH-002", phaseInstall, "the chart takes the values", "correct the value that is named: its meaning is in values.yaml of the chart"}
	checkNamespace = checkCode{"ISTH-100", phaseInstall, "the mesh is in the namespace that is looked at", "name it: --namespace"}
	checkCard      = checkCode{"ISTH-101", phaseInstall, "the cluster has a link card", "isthmus init --network {network} --trust-domain {domain} --apply {at} # network and trust domain as in the chart; with --dir, where init has made a directory before"}
	checkSecrets   = checkCode{"ISTH-102", phaseInstall, "the Secrets that gateways and controller mount are there", "isthmus init --network {network} --trust-domain {domain} --apply {at} # with --dir of the directory that it made; if that is lost, with --replace"}
	checkRoots     = checkCode{"ISTH-103", phaseInstall, "the own roots are those of the card, and valid for 30 days and more", "isthmus init --network {network} --trust-domain {domain} --apply {at} # with --dir of the directory that it made; one that ends soon is replaced by isthmus ca rotate: docs/operations.md, The root of a CA"}
	checkGateways  = checkCode{"ISTH-104", phaseInstall, "as many gateways are ready as are wanted", "{kubectl} describe pods --selector app.kubernetes.io/name=isthmus-gateway"}
	checkControl   = checkCode{"ISTH-105", phaseInstall, "as many controllers are ready as are wanted", "{kubectl} describe pods --selector app.kubernetes.io/name=isthmus-controller"}
	checkNodes     = checkCode{"ISTH-106", phaseInstall, "as many node proxies are ready as there are nodes for", "{kubectl} describe pods --selector app.kubernetes.io/name=isthmus-nodeproxy"}
	checkAddress   = checkCode{"ISTH-107", phaseLink, "the gateway's Service has an address that others can dial", "{kubectl} describe service isthmus-gateway # without a load balancer write the address to isthmus link --address"}
	checkNetworks  = checkCode{"ISTH-108", phaseLink, "the file of known networks can be read", "{kubectl} edit configmap isthmus-networks # correct the field that is named"}
	checkForward   = checkCode{"ISTH-109", phaseRun, "kubectl forwards to a gateway and a controller, which are asked themselves", "what is named; it takes create on pods/portforward (docs/rights.md). Or forward yourself, and use --admin"}
	checkObjects   = checkCode{"ISTH-110", phaseRun, "no object has a problem that the controller has written an Event of within 45 minutes", "do what it says; kubectl describe shows it at the object, and what is mended is not written again"}
	checkExports   = checkCode{"ISTH-111", phaseRun, "each ServiceExport is valid and ready, and agrees with those of other clusters", "do what its condition says; kubectl describe serviceexport shows it"}
	checkRollouts  = checkCode{"ISTH-112", phaseInstall, "all pods of gateways, controllers and node proxies are of the version that was installed last", "{helm} rollback {release} # takes the version back; kubectl rollout status and kubectl describe say more of what is named"}
	checkRights    = checkCode{"ISTH-113", phaseRun, "the service accounts of gateways and controller have their rights at the API server", "{helm} upgrade {release} {chart} --reuse-values # makes the roles anew: docs/rights.md"}
	checkInstalled = checkCode{"ISTH-114", phaseInstall, "the chart was installed with the network and trust domain of the link card", "{helm} upgrade {release} {chart} --reuse-values --set network=NETWORK,trustDomain=DOMAIN # with those of the card; where the card is wrong, isthmus init with --replace"}
	checkKinds     = checkCode{"ISTH-115", phaseInstall, "the cluster has the kinds ServiceExport and ServiceImport, without which services of other networks have no address", "{helm} install isthmus-crds {chart}-crds"}
	checkAllowed   = checkCode{"ISTH-116", phaseRun, "who runs check may read what it needs", "have them given to you: docs/kubernetes/operator.yaml has them all, and docs/rights.md what for"}
	checkLeftOut   = checkCode{"ISTH-117", phaseRun, "no pod that would be in the mesh is left out of capture because it is in the network of its node (hostNetwork)", "let it run on the pod network; or write the label istio.io/dataplane-mode: none into its template, and it is not named any more"}
	checkCapture   = checkCode{"ISTH-118", phaseRun, "each node captures its pods, where the chart was installed to capture", "what is named: nf_tables of the kernel, or the rights of node proxies (docs/rights.md, On a node); {kubectl} logs POD # of the node proxy"}
	checkName      = checkCode{"ISTH-201", phaseLink, "both clusters have names of their own", "make one of the networks anew with another name: isthmus init --network"}
	checkDomain    = checkCode{"ISTH-202", phaseLink, "both clusters have trust domains of their own, or one root", "if they are not one and the same administration, make one of them anew with isthmus init --trust-domain"}
	checkLinked    = checkCode{"ISTH-203", phaseLink, "the cluster knows the other's network", "isthmus link --contexts {contexts} --apply"}
	checkKeys      = checkCode{"ISTH-204", phaseLink, "the keys that it knows are those that the other has", "isthmus link --contexts {contexts} --apply # if the network was made anew, the same with unlink before"}
	checkTrusted   = checkCode{"ISTH-205", phaseLink, "it believes the other's roots", "isthmus link --contexts {contexts} --apply"}
	checkDialled   = checkCode{"ISTH-206", phaseLink, "it dials the other's gateways where they are now", "isthmus link --contexts {contexts} --apply # isthmus link again; where the other's Service does not know the address, write it to address.hosts of the gateways there (gateway.config of the chart)"}
	checkAsked     = checkCode{"ISTH-301", phaseRun, "the process answers at its admin address", "see whether it runs; --admin names its admin.address"}
	checkReady     = checkCode{"ISTH-302", phaseRun, "the process is ready", "what it waits for is named: docs/operations.md, Ready"}
	checkClock     = checkCode{"ISTH-303", phaseRun, "its clock is within 5 s of the clock here", "run a time service on both machines: certificates begin and end by the clock"}
	checkProblems  = checkCode{"ISTH-304", phaseRun, "the process has no problems", "do what the line says behind its last colon; docs/operations.md, What status and explain say, has each by its first words. It is gone within 10 s of being mended"}
	checkHeard     = checkCode{"ISTH-305", phaseRun, "each network that it knows is heard, over a connection that its gateways have proved", "see the addresses in both directions: firewalls, load balancers, and whether the other side is linked"}
	checkAttached  = checkCode{"ISTH-306", phaseRun, "the node proxy has a health stream to a gateway of its network", "see its log for why gateways refuse it, and whether its network's gateways run"}
	checkReachable = checkCode{"ISTH-307", phaseRun, "the gateways that it needs take its connections", "see the last error, which is named: address, firewall or certificate; docs/operations.md, What status and explain say, has each reason"}
	checkTunnels   = checkCode{"ISTH-308", phaseRun, "the gateway opens a tunnel to the gateways of each other network, at each address", "what is named: an address, a firewall, a certificate or its trust domain; isthmus link again if it has changed"}
	checkGuarded   = checkCode{"ISTH-309", phaseRun, "plain text comes to the node proxy where a policy denies it, all or some", "capture.scope: all (nodeProxy.capture.scope=all of the chart), or keep plain text from these pods by a NetworkPolicy: docs/security.md, Policies"}
	checkServed    = checkCode{"ISTH-310", phaseRun, "connections of its pods to the services that they use do not all fail", "what the error in brackets says; docs/operations.md, What status and explain say, has each; isthmus explain SOURCE DESTINATION has each candidate. It is gone with the first connection that succeeds"}
	checkSelects   = checkCode{"ISTH-311", phaseRun, "each policy is for a workload, by ports on which that listens, and principals of cluster.local are not those of a linked network", "correct the selector or the namespace, which are named, or the labels of the pods: until then the policy changes nothing; if its pods are yet to come, nothing. Of principals write what is named: docs/configuration.md, cluster.local in principals"}
	checkRouted    = checkCode{"ISTH-312", phaseRun, "addresses lead somewhere: those of gateways, and where pods are captured the virtual ones of services that lead to other networks", "what is named; docs/capture.md, With pods of your own, has what each takes"}
)

// checkCodes are all, in their order.
var checkCodes = []checkCode{checkConfig, checkValues, checkNamespace, checkCard, checkSecrets, checkRoots, checkGateways, checkControl, checkNodes, checkAddress, checkNetworks, checkForward, checkObjects, checkExports, checkRollouts, checkRights,
	checkInstalled, checkKinds, checkAllowed, checkLeftOut, checkCapture, checkName, checkDomain, checkLinked, checkKeys, checkTrusted, checkDialled, checkAsked, checkReady, checkClock, checkProblems, checkHeard, checkAttached, checkReachable, checkTunnels, checkGuarded, checkServed, checkSelects, checkRouted}

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
