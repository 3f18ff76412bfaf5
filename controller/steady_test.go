package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/notices"
)

func TestWhatIsWrongStandsBeforeItIsToldAndIsTakenBackOnce(t *testing.T) {
	var s steady
	began := time.Now()
	m := matter{notices.Object{Kind: notices.ConfigMap, Namespace: "isthmus-system", Name: "isthmus-networks"}, "NotConnected", "east"}
	told := func(after time.Duration, text, want string) {
		t.Helper()
		var found []fault
		if text != "" {
			found = []fault{{m, text}}
		}
		got := ""
		for _, n := range s.settle(found, began.Add(after))[m.at] {
			got += n.Message
		}
		if got != want {
			t.Errorf("after %v told %q, want %q", after, got, want)
		}
	}
	told(0, "reset", "")
	told(time.Second, "", "") // a start: it begins anew
	told(9*time.Second, "reset", "")
	told(18*time.Second, "timeout", "")
	told(19*time.Second, "reset", "reset")
	for i := range 200 { // the error is another one each time
		told(time.Duration(20+i)*time.Second, fmt.Sprint("error ", i), "reset")
	}
	told(221*time.Second, "", "reset") // for a moment
	told(222*time.Second, "reset", "reset")
	told(223*time.Second, "", "reset")
	told(226*time.Second, "", "")
	told(227*time.Second, "again", "")
	if len(s.stands) != 1 {
		t.Errorf("%d things stand", len(s.stands))
	}
}

func TestTheTextOfAMissingRightNamesNoObject(t *testing.T) {
	one := rightOf(`serviceimports.multicluster.x-k8s.io "hello" is forbidden: User "system:serviceaccount:isthmus-system:controller" cannot create resource "serviceimports" in API group "multicluster.x-k8s.io" in the namespace "default"`)
	other := rightOf(`serviceimports.multicluster.x-k8s.io "web" is forbidden: User "system:serviceaccount:isthmus-system:controller" cannot create resource "serviceimports" in API group "multicluster.x-k8s.io" in the namespace "shop"`)
	if want := `User "system:serviceaccount:isthmus-system:controller" cannot create resource "serviceimports" in API group "multicluster.x-k8s.io"`; one != want || other != want {
		t.Errorf("%q and %q; want %q", one, other, want)
	}
	if got := rightOf(`pods is forbidden: User "gateway" cannot watch resource "pods" in API group "" at the cluster scope - error from a previous attempt: read tcp 127.0.0.1:54992->127.0.0.1:42109: read: connection reset by peer`); got != `User "gateway" cannot watch resource "pods" in API group "" at the cluster scope` {
		t.Errorf("after an attempt that was cut off it is %q", got)
	}
	if got := rightOf("i/o timeout"); got != "" {
		t.Errorf("what is no right is %q", got)
	}
}
