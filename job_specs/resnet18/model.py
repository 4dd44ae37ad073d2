"""ResNet-18 for small images, in plain torch."""

from torch import nn


class Block(nn.Module):
    """Two 3x3 convolutions with a way around them."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.last = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.last(self.body(x) + self.around(x))


def resnet18(classes=10, width=64):
    """Four stages of two blocks. `width` 64 is the usual network; smaller ones are for trying things out."""
    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
