# A workload that is gone is forgotten; whoever comes under its key is new, and
# a late result of the old one is one outcome like any other.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s begin late                        | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
1s forget                            | healthy health=1.000 failures=0 ejections=0
1s show                              | healthy health=1.000 failures=0 ejections=0
2s end late failure                  | healthy health=0.700 failures=1 ejections=0
