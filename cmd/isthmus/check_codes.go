package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// checkCode is one thing that check looks at. Codes never change their meaning, and
// docs/operations.md has a line for each.
type checkCode struct {
	code, what, remedy string
}

// What check looks at, in its order: 0xx files, 1xx one cluster, 2xx two clusters, 3xx a process.
var (
	checkConfig    = checkCode{"ISTH-001", "the program takes the configuration", "correct the field that is named: docs/configuration.md; files that it names have to be there too"}
	checkValues    = checkCode{"ISTH-002", "the chart takes the values", "correct the value that is named: helm show values, and values.schema.json"}
	checkCard      = checkCode{"ISTH-101", "the cluster has a link card", "run isthmus init --network NAME --trust-domain DOMAIN --apply --context CONTEXT, where DOMAIN is trustDomain of the chart and NAME its network; where init has been run before, with its directory"}
	checkSecrets   = checkCode{"ISTH-102", "the Secrets that gateways and controller mount are there", "run isthmus init --apply with the directory that it made; without it make the network anew, with --replace and --trust-domain"}
	checkRoots     = checkCode{"ISTH-103", "the own roots are those of the card, and valid for 30 days and more", "run isthmus init --apply again with the directory that it made; before a root expires make another one and let both be believed"}
	checkGateways  = checkCode{"ISTH-104", "as many gateways are ready as are wanted", "see kubectl describe pods -l app.kubernetes.io/name=isthmus-gateway, and isthmus status at a gateway"}
	checkControl   = checkCode{"ISTH-105", "as many controllers are ready as are wanted", "see kubectl describe pods -l app.kubernetes.io/name=isthmus-controller"}
	checkNodes     = checkCode{"ISTH-106", "as many node proxies are ready as there are nodes for", "see kubectl describe pods -l app.kubernetes.io/name=isthmus-nodeproxy"}
	checkAddress   = checkCode{"ISTH-107", "the gateway's Service has an address that others can dial", "see kubectl describe service isthmus-gateway; without a load balancer give isthmus link --address"}
	checkNetworks  = checkCode{"ISTH-108", "the file of known networks can be read", "see the field that is named; isthmus unlink and isthmus link write it anew"}
	checkForward   = checkCode{"ISTH-109", "kubectl forwards to a gateway and a controller, which are asked themselves", "give whoever runs this create on pods/portforward, or forward yourself and use --admin"}
	checkObjects   = checkCode{"ISTH-110", "no object has a problem that the controller has written an Event of within 45 minutes", "do what it says; kubectl describe shows it at the object, and what is mended is not written again"}
	checkExports   = checkCode{"ISTH-111", "each ServiceExport is valid and ready, and agrees with those of other clusters", "do what its condition says; kubectl describe serviceexport shows it"}
	checkRollouts  = checkCode{"ISTH-112", "all pods of gateways, controllers and node proxies are of the version that was installed last", "see kubectl rollout status and kubectl describe of what is named; helm rollback takes a version back"}
	checkRights    = checkCode{"ISTH-113", "the service accounts of gateways and controller have their rights at the API server", "give them those that are named: docs/rights.md has the reason for each; helm upgrade makes the roles anew"}
	checkName      = checkCode{"ISTH-201", "both clusters have names of their own", "make one of the networks anew with another name: isthmus init --network"}
	checkDomain    = checkCode{"ISTH-202", "both clusters have trust domains of their own, or one root", "if they are not one and the same administration, make one of them anew with isthmus init --trust-domain"}
	checkLinked    = checkCode{"ISTH-203", "the cluster knows the other's network", "run isthmus link --contexts A,B --apply"}
	checkKeys      = checkCode{"ISTH-204", "the keys that it knows are those that the other has", "run isthmus link again; if the network was made anew, isthmus unlink first"}
	checkTrusted   = checkCode{"ISTH-205", "it believes the other's roots", "run isthmus link again"}
	checkDialled   = checkCode{"ISTH-206", "it dials the other's gateways where they are now", "run isthmus link again; for an address that the other's Service does not know, write it to address.hosts of the gateways there, so that everybody is told"}
	checkAsked     = checkCode{"ISTH-301", "the process answers at its admin address", "see whether it runs; --admin names its admin.address"}
	checkReady     = checkCode{"ISTH-302", "the process is ready", "what it waits for is named: docs/operations.md, Ready"}
	checkClock     = checkCode{"ISTH-303", "its clock is within 5 s of the clock here", "run a time service on both machines: certificates begin and end by the clock"}
	checkProblems  = checkCode{"ISTH-304", "the process has no problems", "each names its field and what to write"}
	checkHeard     = checkCode{"ISTH-305", "each network that it knows is heard, over a connection that its gateways have proved", "see the addresses in both directions: firewalls, load balancers, and whether the other side is linked"}
	checkAttached  = checkCode{"ISTH-306", "the node proxy has a health stream to a gateway of its network", "see its log for why gateways refuse it, and whether its network's gateways run"}
	checkReachable = checkCode{"ISTH-307", "the gateways that it needs take its connections", "the last error is named"}
	checkTunnels   = checkCode{"ISTH-308", "the gateway opens a tunnel to the gateways of each other network, at each address", "what is named: an address, a firewall, a certificate or its trust domain; isthmus link again if it has changed"}
)

// checkCodes are all, in their order.
var checkCodes = []checkCode{checkConfig, checkValues, checkCard, checkSecrets, checkRoots, checkGateways, checkControl, checkNodes, checkAddress, checkNetworks, checkForward, checkObjects, checkExports, checkRollouts, checkRights,
	checkName, checkDomain, checkLinked, checkKeys, checkTrusted, checkDialled, checkAsked, checkReady, checkClock, checkProblems, checkHeard, checkAttached, checkReachable, checkTunnels}

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
}

// checkup gathers what is checked.
type checkup struct {
	all []checked
	// lookup resolves host names.
	lookup func(ctx context.Context, host string) ([]string, error)
}

// add notes a check: well if found is empty.
func (c *checkup) add(code checkCode, where, level, found string) {
	x := checked{Code: code.code, Level: level, Where: where, What: code.what, Found: found, Remedy: code.remedy}
	if found == "" {
		x.Level, x.Remedy = checkWell, ""
	}
	c.all = append(c.all, x)
}

// sort puts the checks of each place side by side, by code: places, and what is of one code, stay
// in the order in which they were looked at.
func (c *checkup) sort() {
	places := map[string]int{}
	for _, x := range c.all {
		if _, known := places[x.Where]; !known {
			places[x.Where] = len(places)
		}
	}
	slices.SortStableFunc(c.all, func(a, b checked) int {
		return cmp.Or(cmp.Compare(places[a.Where], places[b.Where]), cmp.Compare(a.Code, b.Code))
	})
}

// wrong is what is, in one line: codes and places, without what changes from look to look.
func (c *checkup) wrong() string {
	var list []string
	for _, x := range c.all {
		if s := fmt.Sprintf("%s (%s)", x.Code, plain(x.Where)); x.Level == checkBad && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return strings.Join(list, ", ")
}

func (c *checkup) count(level string) (n int) {
	for _, x := range c.all {
		if x.Level == level {
			n++
		}
	}
	return n
}
