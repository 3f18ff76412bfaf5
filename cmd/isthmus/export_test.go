package main

import (
	"strings"
	"testing"
)

func TestExportZtunnelPrintsOneNodesView(t *testing.T) {
	const mesh = "../../examples/two-networks/mesh.yaml"
	east := succeed(t, "export", "ztunnel", "--config", mesh, "--node", "east-1")
	wantIn(t, east, "uid: east/demo/shop", "uid: west/SplitHorizonWorkload/", "destination: west/127.20.2.1", "uid: NetworkGateway/west/127.20.2.1/15008", "hostname: hello.demo.svc.cluster.local")
	if strings.Contains(east, "127.20.2.10") {
		t.Errorf("east is told the address of a pod on west:\n%s", east)
	}
	wantIn(t, succeed(t, "export", "ztunnel", "--config", mesh, "--node", "west-1"), "127.20.2.10", "80: 8080")

	for args, want := range map[string]string{
		"--node x":                           `"config"`,
		"--config none.yaml --node x":        "none.yaml",
		"--config " + mesh + " --node north": `node "north": no workload runs there: name one of east-1, west-1`,
	} {
		code, out, errs := isthmus(t, append([]string{"export", "ztunnel"}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" {
			t.Errorf("export ztunnel %s: exit %d, stdout %q, want %d and none", args, code, out, exitUsage)
		}
		wantIn(t, errs, want)
	}
}
