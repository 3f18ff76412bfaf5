package keyfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/settled"
)

// A file of networks that is being rewritten in place is believed when it is whole: cut,
// it would unlink networks.
func TestNetworksAreReadWhenTheirFileIsLeftAlone(t *testing.T) {
	const entry = "  - {name: west, keys: ['ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=']}\n"
	steps := []string{"networks:\n" + entry, "", "networks:\n", "networks:\n" + entry, "networks:\n" + entry + strings.ReplaceAll(strings.Replace(entry, "west", "north", 1), "11qY", "12qY")}
	for name, forever := range map[string]bool{"rewritten": false, "written to for ever": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "networks.yaml")
				write := func(content string) { // dated by the bubble's clock
					if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
						t.Error(err)
					}
					if err := os.Chtimes(path, time.Now(), time.Now()); err != nil {
						t.Error(err)
					}
				}
				write(steps[0])
				go func() {
					time.Sleep(settled.Pause / 10) // never while the file is read
					for i := 1; i < len(steps) || forever && i < 60; i++ {
						write(steps[i%len(steps)])
						time.Sleep(settled.Pause / 2)
					}
				}()
				known, links, err := ReadLinks(path)
				if forever {
					if err == nil || !strings.Contains(err.Error(), path+": it is written to again and again") {
						t.Errorf("%d networks, %v", len(links), err)
					}
				} else if err != nil || len(known) != 2 || len(links) != 2 {
					t.Errorf("%d networks, %v; want the 2 of the whole file", len(links), err)
				}
				time.Sleep(4 * time.Second)
			})
		})
	}
}

// The file is on a server whose clock is ahead of this one's by two seconds, and is
// rewritten in place: no part of it is believed.
func TestNetworksAreReadWhenTheirFileIsLeftAloneWhereItsServersClockIsAhead(t *testing.T) {
	const entry = "  - {name: west, keys: ['ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=']}\n"
	whole := "networks:\n" + entry + strings.ReplaceAll(strings.Replace(entry, "west", "north", 1), "11qY", "12qY")
	for name, ahead := range map[string]time.Duration{"together": 0, "ahead": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "networks.yaml")
				write := func(content string) {
					if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
						t.Error(err)
					}
					if at := time.Now().Add(ahead); os.Chtimes(path, at, at) != nil {
						t.Error("no times")
					}
				}
				write("networks:\n" + entry)
				go func() {
					time.Sleep(settled.Pause / 2)
					write(whole)
				}()
				if known, _, err := ReadLinks(path); err != nil || len(known) != 2 {
					t.Errorf("%d networks, %v; want the 2 of the whole file", len(known), err)
				}
				time.Sleep(time.Second)
			})
		})
	}
}
