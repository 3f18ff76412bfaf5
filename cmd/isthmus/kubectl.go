package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
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
	k.context = strings.TrimSpace(context)
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
	cmd.WaitDelay = time.Second // a plugin for credentials may go on
	err := cmd.Run()
	if err == nil {
		return out.Bytes(), nil
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return nil, exit(exitStart, fmt.Errorf("--kubectl %s: there is no such program: install kubectl, or say where it is: %w", k.program, err))
	}
	why := complaint(failed.String())
	if why == "" {
		why = err.Error()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = fmt.Sprintf("no answer within %v", kubectlLimit)
	}
	why = fmt.Sprintf("%s %s: %s", k.program, strings.Join(args, " "), why)
	if remedy := k.remedy(ctx, why); remedy != "" {
		why = fmt.Sprintf("%s: %s (%s)", k.where(), remedy, why)
	}
	return nil, exit(exitStart, errors.New(why))
}

// where names the cluster that is asked.
func (k kubectl) where() string {
	if k.context == "" {
		return "the kubeconfig's current context"
	}
	return fmt.Sprintf("context %q", k.context)
}

// remedy is what to do about what kubectl says; empty: it says enough itself.
func (k kubectl) remedy(ctx context.Context, why string) string {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(why, p) })
	}
	switch {
	case k.context != "" && has(fmt.Sprintf("context %q does not exist", k.context), "context was not found"):
		return k.knownContexts(ctx)
	case has("(Forbidden)"):
		return "you have no right to that there: use a context of somebody who has, or have it given to you: docs/kubernetes/operator.yaml has all that isthmus needs"
	case has("(Unauthorized)", "must be logged in", "getting credentials"):
		return "your credentials are not taken there: log in anew"
	case k.context == "" && has("localhost:8080"):
		return "there is none: name one with --context, or a kubeconfig with --kubeconfig"
	case has("certificate signed by unknown authority", "x509: "):
		return "its API server shows a certificate that the kubeconfig does not take: is the kubeconfig of an earlier cluster?"
	case has("no such host", "connection refused", "was refused", "i/o timeout", "Unable to connect to the server", "no answer within", "no route to host"):
		return "its API server cannot be reached: is the cluster up, and this machine on a network or VPN that leads there?"
	}
	return ""
}

// knownContexts says which contexts there are instead of k's.
func (k kubectl) knownContexts(ctx context.Context) string {
	args := []string{"config", "get-contexts", "--output", "name"}
	if k.kubeconfig != "" {
		args = append(args, "--kubeconfig", k.kubeconfig)
	}
	b, err := exec.CommandContext(ctx, k.program, args...).Output()
	if err != nil {
		return "the kubeconfig has no such context: see `kubectl config get-contexts`"
	}
	names := strings.Fields(string(b))
	if len(names) == 0 {
		return "the kubeconfig has no contexts at all: name another with --kubeconfig, or in KUBECONFIG"
	}
	return "the kubeconfig has no such context: " + strictyaml.Suggest(k.context, names)
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
	Metadata struct {
		Name, Namespace string
		Annotations     map[string]string
	}
	Data map[string]string
}
