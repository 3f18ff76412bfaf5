package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// kubectl asks the cluster of one context by the program of that name, with the rights of
// whoever runs it: this command links no client of its own, and keeps no credential.
type kubectl struct {
	program, kubeconfig, context, namespace string
}

// kubectlLimit bounds one call of kubectl.
const kubectlLimit = 30 * time.Second

// kubectlFlags are those of commands that ask clusters.
func kubectlFlags(cmd *cobra.Command, k *kubectl) {
	cmd.Flags().StringVar(&k.program, "kubectl", "kubectl", "program that asks clusters")
	cmd.Flags().StringVar(&k.kubeconfig, "kubeconfig", "", "kubeconfig that has the contexts; kubectl's own when left out")
	cmd.Flags().StringVarP(&k.namespace, "namespace", "n", "isthmus-system", "namespace of the mesh")
}

// of is k at another context.
func (k kubectl) of(context string) kubectl {
	k.context = context
	return k
}

func (k kubectl) run(ctx context.Context, in []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, kubectlLimit)
	defer cancel()
	if k.kubeconfig != "" {
		args = append(args, "--kubeconfig", k.kubeconfig)
	}
	if k.context != "" {
		args = append(args, "--context", k.context)
	}
	cmd := exec.CommandContext(ctx, k.program, args...)
	var out, failed bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &failed
	if err := cmd.Run(); err != nil {
		why := complaint(failed.String())
		if why == "" {
			why = err.Error()
		}
		return nil, exit(exitStart, fmt.Errorf("%s %s: %s", k.program, strings.Join(args, " "), why))
	}
	return out.Bytes(), nil
}

// complaint is what kubectl says of a failure, each line once. Lines of its log (such as
// "E1123 09:00:00.000000 1 memcache.go:265] …", one for each attempt) only say the same before.
func complaint(text string) string {
	var all, own []string
	for line := range strings.Lines(strings.TrimSpace(text)) {
		if line = strings.TrimSpace(line); line == "" || slices.Contains(all, line) {
			continue
		}
		all = append(all, line)
		if !logLine.MatchString(line) {
			own = append(own, line)
		}
	}
	if len(own) == 0 {
		own = all[:min(len(all), 1)]
	}
	return strings.Join(own, "\n")
}

var logLine = regexp.MustCompile(`^[IWEF][0-9]{4} [0-9:.]+ +[0-9]+ [^ ]+:[0-9]+\]`)

// get reads an object of the namespace; there is false if there is none.
func (k kubectl) get(ctx context.Context, kind, name string, into any) (there bool, err error) {
	b, err := k.run(ctx, nil, "get", kind, name, "--namespace", k.namespace, "--output", "json", "--ignore-not-found")
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return false, err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return false, exit(exitStart, fmt.Errorf("%s %s of context %q: %w", kind, name, k.context, err))
	}
	return true, nil
}

// apply makes objects be as the manifest says, and returns what kubectl says of it.
func (k kubectl) apply(ctx context.Context, manifest []byte) (string, error) {
	b, err := k.run(ctx, manifest, "apply", "--filename", "-")
	return string(b), err
}

// configMap is what is read of one.
type configMap struct {
	Data map[string]string
}
