package identity

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestConfigOpensBothSources(t *testing.T) {
	ca, caDir := initCA(t, meshTD)
	files := filepath.Join(t.TempDir(), "svids")
	writeSVID(t, files, issueSVID(t, ca, cartID, time.Hour))
	for _, c := range []Config{{Dir: caDir}, {Source: "ca", Dir: caDir, TTL: time.Minute}, {Source: "files", Dir: files}} {
		m, err := c.Open(quietLog)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		s := mustGet(t, m, cartID)
		if c.TTL != 0 && time.Until(s.NotAfter()) > 2*c.TTL {
			t.Errorf("%+v: valid until %s", c, s.NotAfter())
		}
	}
}

func TestConfigErrorsNameFieldValueAndRemedy(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config Config
		want   []string
	}{
		{Config{}, []string{"identity.dir", "isthmus ca init"}},
		{Config{Source: "spire", Dir: dir}, []string{"identity.source", `"spire"`, "ca, files or istio"}},
		{Config{Dir: dir, TTL: time.Millisecond}, []string{"identity.ttl", "1ms", "1s"}},
		{Config{Dir: dir, TTL: -time.Hour}, []string{"identity.ttl", "-1h"}},
		{Config{Dir: filepath.Join(dir, "none")}, []string{"identity.dir", "none", "isthmus ca init"}},
		{Config{Source: "files", Dir: filepath.Join(dir, "none")}, []string{"identity.dir", "none", "isthmus ca issue"}},
		{Config{Source: "files", Dir: file}, []string{"identity.dir", file, "directory"}},
	} {
		_, err := c.config.Open(quietLog)
		wantError(t, err, c.want...)
	}
}

func TestConfigFieldsAreDocumented(t *testing.T) {
	for f := range reflect.TypeFor[Config]().Fields() {
		if f.Tag.Get("yaml") == "" || f.Tag.Get("doc") == "" || !strings.HasPrefix(f.Tag.Get("env"), "ISTHMUS_IDENTITY_") {
			t.Errorf("%s: tags %q", f.Name, f.Tag)
		}
	}
}
