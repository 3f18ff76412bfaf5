//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// cniConfig is the plugin's configuration and what the plugin before it has done.
type cniConfig struct {
	CNIVersion string          `json:"cniVersion"`
	Namespaces []string        `json:"namespaces"` // of the pods that are served
	PrevResult json.RawMessage `json:"prevResult"`
}

// servedByNode is a CNI plugin behind one that has made a pod's addresses: these become
// addresses of the node too, so that the node's own proxy can listen there. Rules of routing
// say which ports the node answers for; all others are the pod's (see the rules in the test).
// It stands for what on a cluster of yours leads port 15008 of pods to somebody who serves it.
func servedByNode() error {
	var c cniConfig
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return err
	}
	switch os.Getenv("CNI_COMMAND") {
	case "VERSION":
		_, err := fmt.Print(`{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}`)
		return err
	case "ADD":
		if err := c.each("replace"); err != nil {
			return err
		}
		_, err := os.Stdout.Write(c.PrevResult)
		return err
	case "DEL":
		return c.each("del")
	}
	return nil
}

// each does something to the route of each of the pod's addresses.
func (c cniConfig) each(what string) error {
	if len(c.PrevResult) == 0 {
		return nil // the pod has none
	}
	if !slices.ContainsFunc(c.Namespaces, func(n string) bool {
		return slices.Contains(strings.Split(os.Getenv("CNI_ARGS"), ";"), "K8S_POD_NAMESPACE="+n)
	}) {
		return nil
	}
	var result struct {
		IPs []struct{ Address netip.Prefix } `json:"ips"`
	}
	if err := json.Unmarshal(c.PrevResult, &result); err != nil {
		return err
	}
	var errs []error
	for _, ip := range result.IPs {
		out, err := exec.Command("ip", "route", what, "local", ip.Address.Addr().String()+"/32", "dev", "lo", "table", "local").CombinedOutput()
		if err != nil && !(what == "del" && strings.Contains(string(out), "No such process")) {
			errs = append(errs, fmt.Errorf("ip route %s: %w: %s", what, err, out))
		}
	}
	return errors.Join(errs...)
}
