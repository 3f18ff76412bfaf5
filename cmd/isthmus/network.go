package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

func newNetworkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Make, show and rotate the key of a network",
		Long: `network keeps the key by which other networks will know this one: the network
certifies its gateways with it, and others list its public half. On Kubernetes isthmus init
makes it (DIR/network) and isthmus link lists it at others.

Each gateway needs both: federation.keys is the directory of its own network's key,
federation.networks the file with the public keys of the others.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNetworkInitCommand(), newNetworkShowCommand(), newNetworkRotateCommand())
	return cmd
}

func networkDirFlag(cmd *cobra.Command) *string {
	dir := cmd.Flags().String("dir", "network", "directory of the network's key")
	_ = cmd.MarkFlagDirname("dir")
	return dir
}

func newNetworkInitCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "init --network NAME",
		Short:   "Make the key of a network in a directory",
		Long:    "init writes key.pem (mode 0600, the secret) and network.yaml, which other networks need: its entry belongs in\ntheir file of known networks. It never replaces a key.",
		Example: "  isthmus network init --network west --dir network",
		Args:    cobra.NoArgs,
	}
	dir := networkDirFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := discovery.NetworkName(name); err != nil {
			return exit(exitUsage, fmt.Errorf("--network %.80q: %w", name, err))
		}
		d, err := keyfile.Init(*dir, name, rand.Reader)
		if err != nil {
			return exit(exitStart, err)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "# made the key of network %s in %s (fingerprint %s)\n# other networks need:\n%s",
			d.Network, *dir, d.Key.Public().Fingerprint(), d.Format())
		return exit(exitStart, err)
	}
	cmd.Flags().StringVar(&name, "network", "", "name of the network (required)")
	_ = cmd.MarkFlagRequired("network")
	return cmd
}

// shownNetwork is what `network show -o json` prints.
type shownNetwork struct {
	Network string     `json:"network"`
	Step    string     `json:"step"` // of the rotation: settled, offered or replaced
	Keys    []shownKey `json:"keys"` // the one that signs first
	// ForgetFrom is when the old key may be forgotten, if one is listed.
	ForgetFrom time.Time `json:"forgetFrom,omitzero"`
	// What network.yaml says of the link, if it does.
	TrustDomains          []string `json:"trustDomains,omitempty"`
	Namespaces            []string `json:"namespaces,omitempty"`
	MaxCapacity           uint32   `json:"maxCapacity,omitempty"`
	GatewayServiceAccount string   `json:"gatewayServiceAccount,omitempty"`
}

type shownKey struct {
	Key         string `json:"key"`
	Fingerprint string `json:"fingerprint"`
	Signs       bool   `json:"signs"`
	Old         bool   `json:"old,omitempty"`  // it signed before, and is listed until it is forgotten
	Lost        bool   `json:"lost,omitempty"` // it is the next one, and no file has it
}

func newNetworkShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Print what other networks need to know this one",
		Long:    "show prints the public keys of the network, never the secret ones, as an entry for a file of known networks,\nand what network.yaml says of the link.",
		Example: "  isthmus network show --dir network\n  isthmus network show -o json",
		Args:    cobra.NoArgs,
	}
	dir := networkDirFlag(cmd)
	format, check := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := check(); err != nil {
			return err
		}
		d, err := keyfile.Open(*dir)
		if err != nil {
			return exit(exitStart, err)
		}
		if *format == "json" {
			s := shownNetwork{Network: d.Network, Step: d.Step().String(), ForgetFrom: d.ForgetFrom(),
				TrustDomains: d.Link.TrustDomains, Namespaces: d.Link.Namespaces, MaxCapacity: d.Link.MaxCapacity, GatewayServiceAccount: d.Link.GatewayServiceAccount}
			for i, k := range d.Public() {
				s.Keys = append(s.Keys, shownKey{k.String(), k.Fingerprint(), i == 0, d.Old != nil && k == *d.Old, d.Lost != nil && k == *d.Lost})
			}
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return exit(exitStart, e.Encode(s))
		}
		return exit(exitStart, printNetwork(cmd, d))
	}
	return cmd
}

func printNetwork(cmd *cobra.Command, d keyfile.Dir) error {
	if what := d.Remaining(); what != "" {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "# rotation %s: %s\n", d.Step(), what); err != nil {
			return err
		}
	}
	for i, k := range d.Public() {
		use := "signs"
		if i > 0 {
			use = "next"
		}
		switch {
		case d.Old != nil && k == *d.Old:
			use = "old"
		case d.Lost != nil && k == *d.Lost:
			use = "lost"
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "# %s: fingerprint %s\n", use, k.Fingerprint()); err != nil {
			return err
		}
	}
	_, err := cmd.OutOrStdout().Write(d.Format())
	return err
}

func newNetworkRotateCommand() *cobra.Command {
	var finish, forget, force bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the key of a network, with an overlap",
		Long: `rotate makes the next key beside the present one, which goes on signing. Give
what it prints to the other networks: they accept both. When all of them have
it, rotate --finish lets the next key sign and removes the present one. Its public
half stays listed, because gateways that it has certified go on being believed by it.
24 h later all gateways were certified anew: rotate --forget-old removes it, and the
others may too. Before that it exits with 1, unless --force says that all gateways of
the network were restarted after --finish.`,
		Example: "  isthmus network rotate --dir network\n  isthmus network rotate --dir network --finish\n  isthmus network rotate --dir network --forget-old",
		Args:    cobra.NoArgs,
	}
	dir := networkDirFlag(cmd)
	cmd.Flags().BoolVar(&finish, "finish", false, "the other networks have both keys: let the next one sign")
	cmd.Flags().BoolVar(&forget, "forget-old", false, "all gateways were certified anew: list the key before the present one no more")
	cmd.Flags().BoolVar(&force, "force", false, "with --forget-old: do not wait for the end of the old key's certificates")
	cmd.MarkFlagsMutuallyExclusive("finish", "forget-old")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if force && !forget {
			return exit(exitUsage, errors.New("--force goes with --forget-old only"))
		}
		if forget {
			d, err := keyfile.Forget(*dir, time.Now(), force)
			if err != nil {
				return exit(rotationCode(err), err)
			}
			if force {
				fmt.Fprintf(cmd.OutOrStdout(), "# forgot the old key of network %s: a gateway that it has certified is believed by nobody until it is restarted\n", d.Network)
			}
			return exit(exitStart, printNetwork(cmd, d))
		}
		if finish {
			d, err := keyfile.Finish(*dir, time.Now())
			if err != nil {
				return exit(rotationCode(err), err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "# replaced the key of network %s\n", d.Network)
			return exit(exitStart, printNetwork(cmd, d))
		}
		d, err := keyfile.Rotate(*dir, rand.Reader)
		if err != nil {
			return exit(rotationCode(err), err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "# made the next key of network %s\n", d.Network)
		return exit(exitStart, printNetwork(cmd, d))
	}
	return cmd
}

// rotationCode is a finding if the directory is well but in another phase.
func rotationCode(err error) int {
	for _, phase := range []error{keyfile.ErrRotating, keyfile.ErrNotRotating, keyfile.ErrNoOldKey, keyfile.ErrOldKeyInUse} {
		if errors.Is(err, phase) {
			return exitFinding
		}
	}
	return exitStart
}
