package owned

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// An import whose status was not written any more says by whose exports it was made.
func TestAnImportSaysWhoExportsItBeforeItsStatusIsWritten(t *testing.T) {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGeneration(1)
	want := imports.Import{Name: vip.Name{Namespace: "demo", Name: "web"}, Ours: true, IPs: []netip.Addr{netip.MustParseAddr("240.240.0.5")},
		Ports: []imports.Port{{Name: "http", Protocol: "TCP", Port: 80}}, Clusters: []string{"east", "north"}, Ready: true}
	write := func() { writeSpec(o, want) }
	if write(); fmt.Sprint(read(o).Clusters) != "[east north]" || !read(o).Behind || read(o).Ready {
		t.Errorf("without a status it is read as %+v", read(o))
	}
	if writeStatus(o, want, time.Now()); fmt.Sprint(read(o).Clusters) != "[east north]" || read(o).Behind || !read(o).Ready {
		t.Errorf("with its status it is read as %+v", read(o))
	}
	message := func() string { return textAt(listAt(o, "status", "conditions")[0], "message") }
	want.Affinity = "ClientIP"
	write()
	if writeStatus(o, want, time.Now()); read(o).Affinity != "ClientIP" || !strings.Contains(message(), "spec.sessionAffinity: ClientIP is not kept") {
		t.Errorf("with an affinity it is read as %+v, and says %q", read(o), message())
	}
	want.Affinity = ""
	write()
	if writeStatus(o, want, time.Now()); read(o).Affinity != "" || strings.Contains(message(), "sessionAffinity") {
		t.Errorf("without an affinity it is read as %+v, and says %q", read(o), message())
	}
	want.Headless, want.IPs = true, nil
	write()
	if writeStatus(o, want, time.Now()); !read(o).Headless || len(read(o).IPs) > 0 || !strings.Contains(message(), "no data path") {
		t.Errorf("headless it is read as %+v, and says %q", read(o), message())
	}
	want.Headless = false
	write()
	want.Clusters = []string{"north"}
	if writeStatus(o, want, time.Now()); fmt.Sprint(read(o).Clusters) != "[north]" {
		t.Errorf("its status says that north alone exports it, and it is read as %+v", read(o))
	}
	want.Clusters = []string{"north", "south"}
	write()
	o.SetGeneration(2)
	if got := read(o); fmt.Sprint(got.Clusters) != "[north south]" || !got.Behind {
		t.Errorf("with the status of what it was before it is read as %+v", got)
	}
}
