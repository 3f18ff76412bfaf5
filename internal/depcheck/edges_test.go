package depcheck

// why maps an imported package to the reason for the edge.
type why map[string]string

// allowed are the import edges between our packages outside of tests. Each
// reason says what crosses the edge.
var allowed = map[string]why{
	// Pure: they speak mesh and little else.
	"mesh":      {},
	"route":     {"mesh": "snapshots are what it plans on", "balance": "the rank of a candidate"},
	"health":    {"mesh": "endpoint IDs are its keys"},
	"balance":   {"mesh": "localities and distributions"},
	"discovery": {"mesh": "snapshots are what it builds"},
	"federation": {
		"mesh":                    "endpoint IDs, and the gateways that own records",
		"federation/federationpb": "the wire form of records",
	},
	"federation/federationpb": {},
	"federation/antientropy": {
		"federation/federationpb": "the messages between gateways",
		"federation/ledger":       "what is believed, compared and asked for",
		"federation/networkkey":   "signs what the gateway itself says",
		"federation/record":       "records and statements",
	},
	"federation/damping": {"mesh": "endpoint IDs"},
	"federation/ledger": {
		"federation/federationpb": "statements and chunks as they travel",
		"federation/networkkey":   "certificates of instances",
		"federation/record":       "records and statements",
	},
	"federation/networkkey": {
		"federation/federationpb": "the wire form of certificates",
		"federation/record":       "the name of an instance",
	},
	"federation/networkkey/keyfile": {
		"federation/networkkey": "the keys in the files",
		"internal/strictyaml":   "reads YAML with lines",
	},
	"federation/record": {
		"mesh":                    "endpoint IDs, localities and distributions",
		"federation/federationpb": "the wire form of records",
	},
	"discovery/ztunnel": {"mesh": "snapshots are what it translates"},

	// The world below them.
	"discovery/file": {
		"discovery":           "the records it reads and the store it fills",
		"mesh":                "snapshots are what it returns",
		"internal/admin":      "what it answers to operators",
		"internal/strictyaml": "reads YAML with lines",
	},
	"federation/gossip": {
		"federation":              "records, codec, ownership",
		"federation/federationpb": "the wire form of envelopes",
		"federation/peer":         "the ledger that it fills, metrics, reasons",
		"identity":                "SVIDs and bundles for signatures, refusals",
		"internal/backoff":        "pauses between dials",
		"internal/link":           "frames on connections that it dials",
		"internal/logging":        "bounds lines about one peer",
		"mesh":                    "gateways to dial",
	},
	"federation/healthstream": {
		"federation":              "records, codec, ownership",
		"federation/federationpb": "the wire form of messages",
		"federation/peer":         "the ledger that it fills and reads, metrics, reasons",
		"identity":                "refusals",
		"internal/backoff":        "pauses between dials",
		"internal/link":           "frames on connections that it dials",
		"internal/logging":        "bounds lines about one peer",
		"mesh":                    "gateways to dial, endpoint IDs",
	},
	"federation/peer": {
		"federation":    "records and the table that it owns",
		"internal/link": "the error of oversized frames",
		"mesh":          "endpoint IDs",
	},
	"hbone": {
		"hbone/flow":   "decides about windows, queues and bulk",
		"hbone/header": "what requests and responses carry",
		"hbone/wire":   "frames, settings and the rules of one frame",
	},
	"hbone/flow":   {},
	"hbone/header": {},
	"hbone/wire":   {},
	"hbone/pool":   {"hbone": "the sessions that it shares"},
	"identity": {
		"internal/backoff":    "pauses between fetches",
		"internal/logging":    "bounds lines about one peer",
		"internal/strictyaml": "checks its configuration",
	},
	"identity/istioca": {
		"identity":                   "reads requests and signs",
		"identity/istioca/istiocapb": "the messages",
	},
	"identity/istioca/istiocapb": {},

	// Processes put everything together.
	"gateway": {
		"internal/accept":         "accept loops that fail",
		"internal/overload":       "bounds connections that are being opened",
		"balance":                 "picks a pod",
		"discovery":               "the store of snapshots",
		"discovery/file":          "the source of snapshots",
		"federation":              "records and tables",
		"federation/gossip":       "gossip with gateways of all networks",
		"federation/healthstream": "health streams of its node proxies",
		"federation/peer":         "what it has been told",
		"hbone":                   "outer tunnels",
		"hbone/header":            "what requests and responses carry",
		"health":                  "who is ejected",
		"identity":                "its own certificate, and whom it lets in",
		"internal/admin":          "metrics, readiness, state",
		"internal/diagnose":       "switches and frame traces of its sessions",
		"internal/admission":      "bounds its clients",
		"internal/fairqueue":      "bounds handshakes with pods, in turn",
		"internal/localfault":     "what is no peer's fault",
		"internal/logging":        "its log",
		"internal/pending":        "bounds handshakes",
		"internal/reprobe":        "asks failed pods again",
		"internal/retrybudget":    "bounds repeats at other pods",
		"internal/strictyaml":     "its configuration",
		"mesh":                    "snapshots",
		"route":                   "authority to exported service",
	},
	"nodeproxy": {
		"internal/accept":         "accept loops that fail",
		"internal/overload":       "bounds connections that are being opened",
		"balance":                 "picks a candidate",
		"discovery":               "the store of snapshots",
		"discovery/file":          "the source of snapshots",
		"federation":              "records and tables",
		"federation/healthstream": "the health stream to its gateways",
		"federation/peer":         "what it has been told",
		"hbone":                   "tunnels",
		"hbone/header":            "what requests and responses carry",
		"hbone/pool":              "sessions shared between connections",
		"health":                  "who is ejected",
		"identity":                "the certificates of its workloads",
		"internal/admin":          "metrics, readiness, state",
		"internal/diagnose":       "switches and frame traces of its sessions",
		"internal/admission":      "bounds its clients",
		"internal/backoff":        "pauses between attempts",
		"internal/localfault":     "what is no peer's fault",
		"internal/logging":        "its log",
		"internal/pending":        "bounds handshakes",
		"internal/reprobe":        "asks failed ports again",
		"internal/retrybudget":    "bounds repeats elsewhere",
		"internal/strictyaml":     "its configuration",
		"mesh":                    "snapshots",
		"route":                   "plans",
	},
	"drill": {
		"internal/strictyaml": "reads scenarios",
		"mesh":                "endpoint IDs in logs",
	},
	"drill/demoapp": {},
	"drill/lab": {
		"discovery":     "the mesh file that it writes for the processes",
		"drill":         "the scenario that it runs and the log that it fills",
		"drill/demoapp": "the pods' application",
		"mesh":          "the port of tunnels",
	},

	// Mains: flags to configuration to run.
	"cmd/gateway": {
		"gateway":          "what it runs",
		"internal/logging": "which part of the configuration says how to log",
		"internal/process": "flags, signals, exit codes",
	},
	"cmd/nodeproxy": {
		"nodeproxy":        "what it runs",
		"internal/logging": "which part of the configuration says how to log",
		"internal/process": "flags, signals, exit codes",
	},
	"cmd/isthmus": {
		"federation/networkkey":         "names and lifetimes of network keys",
		"federation/networkkey/keyfile": "network keys in files",
		"discovery/file":                "isthmus export: reads the mesh",
		"discovery/ztunnel":             "isthmus export: translates it",
		"drill":                         "isthmus drill: scenario, verdict, report",
		"drill/demoapp":                 "isthmus app: a pod's application",
		"drill/lab":                     "isthmus drill: starts the processes",
		"identity":                      "isthmus ca",
		"identity/istioca":              "isthmus ca serve",
	},

	// They start the binaries of the others and need no package of theirs.
	"integration/fleet": {},
	"integration/overload": {
		"discovery":         "writes the discovery file",
		"integration/fleet": "starts the processes",
	},
	"integration/soak": {
		"discovery":         "writes the discovery file",
		"integration/fleet": "starts the processes",
	},
	"integration/benchpath": {
		"integration/fleet": "counts processor time",
		"integration/stock": "the environment of a stock proxy",
		"internal/netspace": "starts processes, in hosts or here",
	},
	"integration/stock": {},

	// Plumbing knows nothing of meshes.
	"internal/accept": {"internal/backoff": "pauses"},
	"internal/admin":  {},
	"internal/diagnose": {
		"hbone":          "the sessions that are looked at",
		"hbone/flow":     "what can be turned off",
		"internal/admin": "where it answers",
	},
	"internal/backoff":    {},
	"internal/link":       {},
	"internal/localfault": {},
	"internal/logging":    {},
	"internal/netspace":   {},
	"internal/admission":  {"internal/strictyaml": "checks its part of a configuration"},
	"internal/process": {
		"internal/logging":    "builds the process's log",
		"internal/strictyaml": "names the keys that changed",
	},
	"internal/reprobe":     {"internal/backoff": "pauses between questions"},
	"internal/retrybudget": {},
	"internal/strictyaml":  {},
	"internal/wan":         {},
}
